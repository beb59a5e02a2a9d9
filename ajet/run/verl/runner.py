"""Another name of `ajet.backbone.verl.trainer.process`, for verl's `checkpoint_callback_class`."""

from ajet.backbone.verl.trainer.process import SavedCallback

__all__ = ["SavedCallback"]
