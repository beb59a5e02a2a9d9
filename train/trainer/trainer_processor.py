"""See `train`."""

from ajet.integration.aworld.trainer.trainer_processor import TrainerProcessor as TrainerProcessor
