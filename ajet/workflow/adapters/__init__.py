"""One file for each kind of client that a tuner hands out; each imports its framework inside its functions only."""
