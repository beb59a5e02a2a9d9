"""Where the groups of a training step come from: an implementation of `Source` a module."""
