"""Rules of `refusals` for checkpoints: how a run adopts verl's checkpoints and resumes from them.

Invariant: when verl reports a saved checkpoint, the checkpoint is complete on disk, and the run's process is notified.
"""

from __future__ import annotations

from collections.abc import Iterator

from ajet.schema.errors import ConfigError
from ajet_verl.config.effective import ACTOR, TRAINER, EffectiveSettings

CALLBACK = "ajet_verl.trainer.process.SavedCallback"


def check_checkpoints(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the settings for saving and resuming.

    The third check is verl's own (PPOTrainer._load_checkpoint). verl makes no check like the first two.
    """
    async_key = f"{ACTOR}.checkpoint.async_save"
    if settings.value(async_key):
        yield settings.make_error(
            "With async_save verl reports a checkpoint as saved before it is completely written, but ajet relies "
            "on the report.",
            async_key,
            f"{TRAINER}.save_freq",
            expected="false",
        )
    callback = settings.value("trainer.checkpoint_callback_class")
    if callback != CALLBACK:
        yield settings.make_error(
            f"With the callback {callback} the run is not notified of verl's checkpoints.",
            "trainer.checkpoint_callback_class",
            f"{TRAINER}.save_freq",
            expected=CALLBACK,
        )
    path = settings.value("trainer.resume_from_path")
    if settings.value("trainer.resume_mode") == "resume_path" and "global_step_" not in str(path):
        yield settings.make_error(
            f"{path} is not a checkpoint of verl.",
            "trainer.resume_from_path",
            f"{TRAINER}.resume",
            expected="auto, never, or the path of a folder global_step_N",
        )
