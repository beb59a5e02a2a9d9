"""The learning rate of a training step.

Invariant: the rate depends on the step number alone. Neither the number of optimizer steps per training step nor
earlier steps without a training signal change the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import OptimizerConfig


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """Learning rate by step: a linear warm-up from 0, then constant, linear or cosine down to `floor` * lr."""

    lr: float
    kind: str
    warmup: int
    floor: float
    total: int | None

    @classmethod
    def from_config(cls, optim: OptimizerConfig, total: int | None) -> LearningRateSchedule:
        """Read the schedule from the configuration. Raise ConfigError for a falling schedule without a known end."""
        if optim.lr_schedule != "constant" and total is None:
            raise ConfigError(
                f"The learning-rate schedule {optim.lr_schedule} needs the number of the last step, which is not set.",
                where="ajet.trainer_common.optim.lr_schedule",
                expected="trainer_common.total_training_steps",
                do="set trainer_common.total_training_steps, or lr_schedule: constant",
            )
        return cls(optim.lr, optim.lr_schedule, max(0, optim.lr_warmup_steps), optim.min_lr_ratio, total)

    def rate_at(self, step: int) -> float:
        """Return the learning rate of `step`, counted from 0: rising in the warm-up, then by the schedule."""
        if step < self.warmup:
            return self.lr * (step + 1) / (self.warmup + 1)
        if self.kind == "constant" or self.total is None:
            return self.lr
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        decay = 1 - progress if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.lr * (self.floor + (1 - self.floor) * decay)
