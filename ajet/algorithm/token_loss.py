"""The loss of each trained token, all terms together: importance * the policy loss, for tokens within the bounds, +
coefficient * KL estimate.

Invariant: one place says which terms there are and in which order they are joined, so that every backbone trains the
same loss. Weights (DESIGN decision 8) and sums are the caller's; so are the numbers of whole replies (`Replies`), which
a caller has that sees a reply in several passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ajet.algorithm.importance import Correction, StaleBounds
from ajet.algorithm.loss_terms import Estimator, estimate, means
from ajet.algorithm.losses.contract import PolicyLoss, Tokens
from ajet.algorithm.registry import loss_of

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm
    from ajet.config.schema.trainer_common import TrainerConfig


class Terms(NamedTuple):
    """Shapes: [T]. Only `loss` is to be differentiated."""

    loss: Tensor
    clipped: Tensor
    """Where a bound cut the gradient off."""
    weights: Tensor | None
    """The importance weights; None without a cap."""
    capped: Tensor | None
    """Where one was held at `is_cap`, or its token masked; None without it."""
    divergence: Tensor | None
    """The KL estimate; None without a KL term."""


class Replies(NamedTuple):
    """Per token, numbers of the whole reply that it belongs to. Shapes: [T]; constants in the gradient."""

    drift: Tensor | None = None
    """See `Tokens.drift`; read where the policy loss is `over_replies`."""
    gaps: Tensor | None = None
    """See `Correction.gaps`; read where the correction is `over_replies`."""
    chosen: Tensor | None = None
    """See `Tokens.chosen`; read where the policy loss is `over_batch`."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """All settings that the loss of a token depends on."""

    policy: PolicyLoss
    correction: Correction | None
    """None: no importance weights."""
    bounds: StaleBounds | None
    """None: no token is left out."""
    behaviour: bool
    """Whether the ratio is to the policy that sampled, and not to the one before the update."""
    kl_coef: float | None
    """None: no KL term."""
    kl_type: Estimator

    @classmethod
    def from_settings(cls, trainer: TrainerConfig, algorithm: Algorithm) -> TokenLoss:
        """The token loss that `trainer_common` and the algorithm ask for."""
        return cls(
            loss_of(algorithm),
            Correction.from_settings(trainer),
            StaleBounds.from_settings(trainer.algorithm),
            trainer.algorithm.old_policy == "behaviour",
            trainer.kl_loss_coef if trainer.use_kl_loss else None,
            trainer.kl_loss_type,
        )

    @property
    def is_cap(self) -> float | None:
        """The bound of the importance weights."""
        return self.correction.cap if self.correction is not None else None

    @property
    def over_replies(self) -> bool:
        """Whether the loss depends on whole replies, so that `Replies` is read."""
        return self.policy.over_replies or self._corrects_replies

    @property
    def looks_back(self) -> bool:
        """Whether the policy's logprobs before the update are needed, however few its optimizer steps."""
        return self.over_replies or self.policy.over_batch

    @property
    def _corrects_replies(self) -> bool:
        return self.correction is not None and self.correction.over_replies

    def tightened(self, gap: float | None, alarm: float | None) -> TokenLoss:
        """This loss with the correction that follows from a mismatch of engine and trainer (`Correction.tightened`)."""
        found = self.correction.tightened(gap, alarm) if self.correction is not None else None
        return self if found is self.correction else replace(self, correction=found)

    def replies(self, present_K: Tensor, old_K: Tensor, engine_K: Tensor, replies_K: Tensor) -> Replies:
        """[K] for all trained tokens of whole replies, whose numbers are in `replies_K`. `present_K`: the policy's
        logprobs as it is now; `old_K`: before the update."""
        drift = gaps = None
        if self.policy.over_replies:
            drift = means(present_K.detach() - (engine_K if self.behaviour else old_K), replies_K)
        if self._corrects_replies:
            assert self.correction is not None
            gaps = self.correction.gaps(old_K, engine_K, replies_K)
        return Replies(drift, gaps)

    def __call__(
        self,
        logprobs_T: Tensor,
        old_T: Tensor,
        advantages_T: Tensor,
        *,
        engine_T: Tensor | None = None,
        reference_T: Tensor | None = None,
        ages_T: Tensor | None = None,
        replies: Replies | None = None,
    ) -> Terms:
        """`old_T`: the policy's logprobs before the update; `engine_T`: those of the distribution sampled from, read
        with `is_cap` and `old_policy: behaviour`; `reference_T`: the reference model's, read with `kl_coef`; `ages_T`:
        see `StaleBounds`. Raises ValueError where one lacks."""
        refers = self._engine(engine_T) if self.behaviour else old_T
        drift = replies.drift if replies is not None else None
        chosen = replies.chosen if replies is not None else None
        loss, clipped = self.policy(Tokens(logprobs_T, refers, advantages_T, drift, chosen))
        if self.bounds is not None:
            moved = drift if drift is not None else logprobs_T.detach() - refers
            outside = self.bounds.outside(moved, advantages_T, ages_T)
            loss, clipped = loss.masked_fill(outside, 0.0), clipped | outside
        weights = capped = divergence = None
        if self.correction is not None:
            gaps = replies.gaps if replies is not None else None
            if gaps is None:
                if self.correction.over_replies:
                    raise ValueError("importance weights of replies need all of their tokens")
                gaps = old_T.detach() - self._engine(engine_T)
            weights = self.correction.weights(gaps)
            capped = self.correction.bounded(weights)
            loss = loss * weights
        if self.kl_coef is not None:
            if reference_T is None:
                raise ValueError("a KL term needs the reference model's logprobs")
            divergence = estimate(logprobs_T, reference_T, self.kl_type)
            loss = loss + self.kl_coef * divergence
        return Terms(loss, clipped, weights, capped, divergence)

    def _engine(self, engine_T: Tensor | None) -> Tensor:
        if engine_T is None:
            raise ValueError("importance weights and the behaviour policy's ratio need the engine's logprobs")
        return engine_T
