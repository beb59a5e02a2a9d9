"""The rules of `refusals` about checkpoints: what a run takes over from verl, and what it goes on from.

Invariant: when verl says that a checkpoint is saved, all of it lies on disk, and the run's own process is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from ajet.schema.errors import ConfigError
from ajet_verl.config.effective import ACTOR, TRAINER, EffectiveSettings

CALLBACK = "ajet_verl.trainer.process.SavedCallback"


def check_checkpoints(s: EffectiveSettings) -> Iterator[ConfigError]:
    """verl: PPOTrainer._save_checkpoint (which refuses neither of the first two) and ._load_checkpoint."""
    late = f"{ACTOR}.checkpoint.async_save"
    if s.value(late):
        yield s.make_error(
            "A checkpoint is taken over into the run once it is complete, and with async_save verl writes on after it "
            "has said that it saved.",
            late,
            f"{TRAINER}.save_freq",
            expected="false",
        )
    callback = s.value("trainer.checkpoint_callback_class")
    if callback != CALLBACK:
        yield s.make_error(
            f"With the callback {callback} the run would not learn that verl has saved a checkpoint.",
            "trainer.checkpoint_callback_class",
            f"{TRAINER}.save_freq",
            expected=CALLBACK,
        )
    path = s.value("trainer.resume_from_path")
    if s.value("trainer.resume_mode") == "resume_path" and "global_step_" not in str(path):
        yield s.make_error(
            f"{path} is no checkpoint of verl.",
            "trainer.resume_from_path",
            f"{TRAINER}.resume",
            expected="auto, never, or the path of a folder global_step_N",
        )
