"""Values of verl's `trainer.v1.trainer_mode` used for decisions."""

from __future__ import annotations

SYNC, SEPARATE, DECOUPLED = "ajet_sync", "ajet_separate_async", "ajet_async"
