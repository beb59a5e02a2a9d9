"""Sources of a training step's groups. Each module implements `Source`."""
