"""verl's trainers with our credit and loss: one thin class for each of verl's modes, registered under names of ours.

Invariant: everything but what `hooks` replaces is verl's own trainer of that mode. verl chooses its replay buffer and
the mode's own section by the mode's name, so that name is put back once the class has been found.
"""

from __future__ import annotations

from typing import Any, ClassVar

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)

from ajet.algorithm import open_algorithm
from ajet.algorithm.token_loss import TokenLoss
from ajet_verl.config.credit import read_credit_settings
from ajet_verl.trainer.hooks import CreditHooks
from ajet_verl.trainer.losses import WeightedSum
from ajet_verl.trainer.reporting import ReportingHooks

POLL_S = 0.25
"""Seconds between two looks for finished groups; verl's own 2 would be most of a small model's step."""


class _CreditTrainer(ReportingHooks, CreditHooks):
    """The part that the trainers of all three modes share."""

    mode: ClassVar[str]
    """verl's name of it."""

    def __init__(self, config: DictConfig) -> None:
        """Raises ValueError for a setting that our credit and loss do not have, UserError for an algorithm that cannot
        be had here."""
        plain: Any = OmegaConf.to_container(config, resolve=True)
        self.settings = read_credit_settings(plain)
        self.algorithm = open_algorithm(self.settings)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_S

    def on_init_end(self) -> None:
        """Once the workers are there: the loss is ours."""
        super().on_init_end()
        tokens = TokenLoss.from_settings(self.settings.trainer_common, self.algorithm)
        entropy_coeff = float(self.config.actor_rollout_ref.actor.entropy_coeff or 0)
        self.actor_rollout_wg.set_loss_fn(WeightedSum(tokens, entropy_coeff))


@register_trainer("ajet_sync")
class SyncTrainer(_CreditTrainer, PPOTrainerSync):
    """Play a batch, then train on it, in turns."""

    mode = "sync"


@register_trainer("ajet_colocate_async")
class ColocateAsyncTrainer(_CreditTrainer, PPOTrainerColocateAsync):
    """Engine and trainer in turns on the same GPUs; unfinished episodes go on after the update."""

    mode = "colocate_async"


@register_trainer("ajet_separate_async")
class SeparateAsyncTrainer(_CreditTrainer, PPOTrainerSeparateAsync):
    """Engine and trainer at once, on GPUs of their own."""

    mode = "separate_async"


@register_trainer("ajet_async")
class DecoupledTrainer(_CreditTrainer, PPOTrainerSync):
    """Train on what samplers played elsewhere; verl's own servers play the held-out tasks alone."""

    mode = "sync"
    is_decoupled = True
