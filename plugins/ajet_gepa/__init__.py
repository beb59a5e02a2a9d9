"""GEPA optimizes the agent's prompt in place of its weights, with the same tasks, workflow and judge."""
