"""See `train`."""

from ajet.integration.aworld.trainer.registry import TRAIN_PROCESSOR as TRAIN_PROCESSOR
