"""Train with a single loop for all trainings with an in-process optimizer. Steps are atomic."""
