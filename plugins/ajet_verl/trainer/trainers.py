"""verl's trainers with ajet's credit and loss: one thin class per mode, registered under ajet's names.

Invariant: everything except the methods in `hooks` is verl's own trainer. verl selects the replay buffer and a section
of the config by the mode's name, so verl's name is restored after the class is found.
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
"""Seconds between two checks for finished groups; verl's 2 would be most of a small model's step."""


class _CreditTrainer(ReportingHooks, CreditHooks):
    """The common part of the trainers of all modes."""

    mode: ClassVar[str]
    """verl's name of the mode."""

    def __init__(self, config: DictConfig) -> None:
        """Read the settings, then run verl's constructor.

        Raises:
            ValueError: credit and loss do not support a setting.
            UserError: the algorithm is not available on verl.
        """
        plain: Any = OmegaConf.to_container(config, resolve=True)
        self.settings = read_credit_settings(plain)
        self.algorithm = open_algorithm(self.settings)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_S

    def on_init_end(self) -> None:
        """Set ajet's loss after the workers are created."""
        super().on_init_end()
        tokens = TokenLoss.from_settings(self.settings.trainer_common, self.algorithm)
        entropy_coeff = float(self.config.actor_rollout_ref.actor.entropy_coeff or 0)
        self.actor_rollout_wg.set_loss_fn(WeightedSum(tokens, entropy_coeff))


@register_trainer("ajet_sync")
class SyncTrainer(_CreditTrainer, PPOTrainerSync):
    """Trains synchronously: samples a batch, updates on it, repeats."""

    mode = "sync"


@register_trainer("ajet_colocate_async")
class ColocateAsyncTrainer(_CreditTrainer, PPOTrainerColocateAsync):
    """Engine and trainer take turns on the same GPUs; unfinished episodes continue after the update."""

    mode = "colocate_async"


@register_trainer("ajet_separate_async")
class SeparateAsyncTrainer(_CreditTrainer, PPOTrainerSeparateAsync):
    """Engine and trainer run concurrently on separate GPUs."""

    mode = "separate_async"


@register_trainer("ajet_async")
class DecoupledTrainer(_CreditTrainer, PPOTrainerSync):
    """Trains on episodes of remote samplers; verl's own servers run the validation tasks only."""

    mode = "sync"
    is_decoupled = True
