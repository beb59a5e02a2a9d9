"""The commands `prove` and `audit`."""
