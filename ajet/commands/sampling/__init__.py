"""Playing and training apart: `ajet sample`, samplers beside a trainer, and the trainer that takes their groups."""
