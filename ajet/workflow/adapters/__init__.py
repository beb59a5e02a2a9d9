"""Adapters of client libraries, one per file; each imports its framework inside functions only."""
