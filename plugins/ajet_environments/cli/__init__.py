"""The command group `env`."""
