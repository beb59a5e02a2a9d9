"""See `train`."""
