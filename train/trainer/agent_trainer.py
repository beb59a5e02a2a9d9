"""See `train`."""

from ajet_aworld.trainer.agent_trainer import AgentTrainer as AgentTrainer
