"""The commands `ajet deploy` and `ajet chat`."""
