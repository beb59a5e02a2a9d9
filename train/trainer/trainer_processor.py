"""Module `train.trainer.trainer_processor` of AWorld's layout, explained in the docstring of `train`."""

from ajet_aworld.trainer.trainer_processor import TrainerProcessor as TrainerProcessor
