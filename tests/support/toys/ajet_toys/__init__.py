"""Parts of every kind, as a package that does not change ajet brings them."""
