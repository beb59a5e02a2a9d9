"""See `train`."""

from ajet.integration.aworld.trainer.agent_trainer import AgentTrainer as AgentTrainer
