"""verl's workers whose learning rate falls linearly, which verl's FSDP does not have.

Invariant: the rate is the local backbone's at every training step; verl saves and restores the schedule as it does its
own. The schedule is one that verl's engine makes in a private method, replaced on the one engine of the actor; the
trainer's private methods are in `hooks`, which these processes need not import.
"""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ajet.algorithm.learning_rate import Schedule


class LinearTraining(TrainingWorker):
    """Trains the actor."""

    def reset(self) -> None:
        """Build the engine, or build it anew."""
        engine: Any = self.engine
        engine._build_lr_scheduler = self._linear
        super().reset()

    def _linear(self, optimizer: Any) -> LambdaLR:
        optim: Any = self.optimizer_config
        total = optim.total_training_steps
        warmup = optim.lr_warmup_steps if optim.lr_warmup_steps > 0 else int(optim.lr_warmup_steps_ratio * total)
        schedule = Schedule(1.0, "linear", warmup, optim.min_lr_ratio or 0.0, total)
        return LambdaLR(optimizer, lambda step: schedule.at(step))


class LinearActor(ActorRolloutRefWorker):
    """For the modes sync and colocate_async."""

    actor_worker_cls = LinearTraining


class LinearDetachedActor(DetachActorWorker):
    """For separate_async."""

    actor_worker_cls = LinearTraining
