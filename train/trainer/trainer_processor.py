"""See `train`."""

from ajet_aworld.trainer.trainer_processor import TrainerProcessor as TrainerProcessor
