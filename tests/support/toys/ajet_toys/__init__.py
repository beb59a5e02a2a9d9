"""A backbone in a package of its own."""
