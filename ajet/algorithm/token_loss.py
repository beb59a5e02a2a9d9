"""The loss of each trained token, all terms together: importance * the algorithm's policy loss (of those that come with
ajet, the clipped ratio) + coefficient * KL estimate.

Invariant: one place says which terms there are and in which order they are joined, so that every backbone trains the
same loss. Weights (DESIGN decision 8) and sums are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ajet.algorithm.importance import truncated_weights
from ajet.algorithm.kl import Estimator, estimate

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm
    from ajet.config.schema.trainer_common import TrainerCommon


class Terms(NamedTuple):
    """Shapes: [T]. Only `loss` is to be differentiated."""

    loss: Tensor
    clipped: Tensor
    """Where a bound cut the gradient off."""
    weights: Tensor | None
    """The importance weights; None without a cap."""
    capped: Tensor | None
    """Where one was held at `is_cap`; None without it."""
    divergence: Tensor | None
    """The KL estimate; None without a KL term."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What the loss of a token depends on."""

    algorithm: Algorithm
    is_cap: float | None
    """None: no importance weights."""
    kl_coef: float | None
    """None: no KL term."""
    kl_type: Estimator

    @classmethod
    def from_settings(cls, trainer: TrainerCommon, algorithm: Algorithm) -> TokenLoss:
        """Of a YAML's `trainer_common`, and the algorithm that it names."""
        return cls(
            algorithm,
            trainer.importance_cap,
            trainer.kl_loss_coef if trainer.use_kl_loss else None,
            trainer.kl_loss_type,
        )

    def __call__(
        self,
        logprobs_T: Tensor,
        old_T: Tensor,
        advantages_T: Tensor,
        *,
        engine_T: Tensor | None = None,
        reference_T: Tensor | None = None,
    ) -> Terms:
        """`old_T`: the policy's logprobs before the update; `engine_T`: those of the distribution sampled from, read
        with `is_cap`; `reference_T`: the reference model's, read with `kl_coef`. Raises ValueError where one lacks."""
        loss, clipped = self.algorithm.policy_loss(logprobs_T, old_T, advantages_T)
        weights = capped = divergence = None
        if self.is_cap is not None:
            if engine_T is None:
                raise ValueError("importance weights need the engine's logprobs")
            weights = truncated_weights(old_T, engine_T, self.is_cap)
            capped = weights >= self.is_cap
            loss = loss * weights
        if self.kl_coef is not None:
            if reference_T is None:
                raise ValueError("a KL term needs the reference model's logprobs")
            divergence = estimate(logprobs_T, reference_T, self.kl_type)
            loss = loss + self.kl_coef * divergence
        return Terms(loss, clipped, weights, capped, divergence)
