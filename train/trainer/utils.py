"""Module `train.trainer.utils` of AWorld's layout, explained in the docstring of `train`."""

from ajet_aworld.trainer.registry import TRAIN_PROCESSOR as TRAIN_PROCESSOR
