"""The loss of each trained token, all terms together: importance * the policy loss, for tokens within the bounds, +
coefficient * KL estimate.

Invariant: one place says which terms there are and in which order they are joined, so that every backbone trains the
same loss. Weights (DESIGN decision 8) and sums are the caller's; so are the numbers of whole replies
(`ReplyStatistics`), which a caller has that sees a reply in several passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from ajet.algorithm.importance import ImportanceCorrection, StaleBounds
from ajet.algorithm.loss_terms import Estimator, average_by_reply, estimate_kl
from ajet.algorithm.losses.contract import LossInputs, PolicyLoss
from ajet.algorithm.registry import open_loss

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm
    from ajet.config.schema.trainer_common import TrainerConfig


class TokenLossTerms(NamedTuple):
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


class ReplyStatistics(NamedTuple):
    """Per token, numbers of the whole reply that it belongs to. Shapes: [T]; constants in the gradient."""

    drift: Tensor | None = None
    """See `Tokens.drift`; read where the policy loss is `over_replies`."""
    gaps: Tensor | None = None
    """See `ImportanceCorrection.gaps`; read where the correction is `over_replies`."""
    chosen: Tensor | None = None
    """See `Tokens.chosen`; read where the policy loss is `over_batch`."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """All settings that the loss of a token depends on."""

    policy: PolicyLoss
    correction: ImportanceCorrection | None
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
            open_loss(algorithm),
            ImportanceCorrection.from_settings(trainer),
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
        """Whether the loss depends on whole replies, so that `ReplyStatistics` is read."""
        return self.policy.over_replies or self._corrects_replies

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the policy's logprobs before the update are needed, however few its optimizer steps."""
        return self.over_replies or self.policy.over_batch

    @property
    def _corrects_replies(self) -> bool:
        return self.correction is not None and self.correction.over_replies

    def tighten(self, gap: float | None, alarm: float | None) -> TokenLoss:
        """This loss with the correction that follows from a mismatch of engine and trainer
        (`ImportanceCorrection.tighten`)."""
        found = self.correction.tighten(gap, alarm) if self.correction is not None else None
        return self if found is self.correction else replace(self, correction=found)

    def compute_reply_statistics(
        self, present_K: Tensor, old_K: Tensor, engine_K: Tensor, replies_K: Tensor
    ) -> ReplyStatistics:
        """[K] for all trained tokens of whole replies, whose numbers are in `replies_K`. `present_K`: the policy's
        logprobs as it is now; `old_K`: before the update."""
        drift = gaps = None
        if self.policy.over_replies:
            drift = average_by_reply(present_K.detach() - (engine_K if self.behaviour else old_K), replies_K)
        if self._corrects_replies:
            assert self.correction is not None
            gaps = self.correction.gaps(old_K, engine_K, replies_K)
        return ReplyStatistics(drift, gaps)

    def __call__(
        self,
        logprobs_T: Tensor,
        old_T: Tensor,
        advantages_T: Tensor,
        *,
        engine_T: Tensor | None = None,
        reference_T: Tensor | None = None,
        ages_T: Tensor | None = None,
        replies: ReplyStatistics | None = None,
    ) -> TokenLossTerms:
        """`old_T`: the policy's logprobs before the update; `engine_T`: those of the distribution sampled from, read
        with `is_cap` and `old_policy: behaviour`; `reference_T`: the reference model's, read with `kl_coef`; `ages_T`:
        see `StaleBounds`. Raises ValueError where one lacks."""
        refers = self._require_engine_logprobs(engine_T) if self.behaviour else old_T
        drift = replies.drift if replies is not None else None
        chosen = replies.chosen if replies is not None else None
        loss, clipped = self.policy(LossInputs(logprobs_T, refers, advantages_T, drift, chosen))
        if self.bounds is not None:
            moved = drift if drift is not None else logprobs_T.detach() - refers
            outside = self.bounds.find_outside(moved, advantages_T, ages_T)
            loss, clipped = loss.masked_fill(outside, 0.0), clipped | outside
        weights = capped = divergence = None
        if self.correction is not None:
            gaps = replies.gaps if replies is not None else None
            if gaps is None:
                if self.correction.over_replies:
                    raise ValueError("importance weights of replies need all of their tokens")
                gaps = old_T.detach() - self._require_engine_logprobs(engine_T)
            weights = self.correction.weights(gaps)
            capped = self.correction.find_bounded(weights)
            loss = loss * weights
        if self.kl_coef is not None:
            if reference_T is None:
                raise ValueError("a KL term needs the reference model's logprobs")
            divergence = estimate_kl(logprobs_T, reference_T, self.kl_type)
            loss = loss + self.kl_coef * divergence
        return TokenLossTerms(loss, clipped, weights, capped, divergence)

    def _require_engine_logprobs(self, engine_T: Tensor | None) -> Tensor:
        if engine_T is None:
            raise ValueError("importance weights and the behaviour policy's ratio need the engine's logprobs")
        return engine_T
