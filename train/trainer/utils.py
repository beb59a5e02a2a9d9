"""See `train`."""

from ajet_aworld.trainer.registry import TRAIN_PROCESSOR as TRAIN_PROCESSOR
