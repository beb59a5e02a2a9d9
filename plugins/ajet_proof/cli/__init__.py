"""Command-line options of `ajet prove` and `ajet audit`."""
