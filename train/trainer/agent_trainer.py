"""Module `train.trainer.agent_trainer` of AWorld's layout, explained in the docstring of `train`."""

from ajet_aworld.trainer.agent_trainer import AgentTrainer as AgentTrainer
