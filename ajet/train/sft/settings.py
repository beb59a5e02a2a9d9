"""The settings with which a backbone learns from what is given.

Invariant: the record keeps the person's; only what the backbone is opened with differs: one optimizer step a batch, a
loss without ratio, and the engine that costs least, since nothing is sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ajet.config.schema.algorithm import Algorithm

if TYPE_CHECKING:
    from ajet.config import Experiment


def settled(experiment: Experiment) -> Experiment:
    """The experiment that `open_backbone` is given."""
    settings = experiment.ajet.model_copy(deep=True)
    trainer, rollout = settings.trainer_common, settings.rollout
    trainer.algorithm = Algorithm(policy_loss="sft")
    trainer.use_kl_loss, trainer.mini_batch_num, trainer.mode, trainer.canary = False, 1, "sync", None
    rollout.engine, rollout.temperature, rollout.top_p, rollout.top_k = "transformers", 1.0, 1.0, -1
    return replace(experiment, ajet=settings)
