"""`ajet serve`: a trainer whose episodes are played by programs that it does not start."""
