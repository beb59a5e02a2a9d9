"""Harbor's task folders (schema 1.4) as tasks of ajet."""
