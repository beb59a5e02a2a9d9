"""Command-line options of commands on recorded runs."""
