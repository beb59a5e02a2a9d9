"""Command-line options of `ajet judge` and `ajet rejudge`."""
