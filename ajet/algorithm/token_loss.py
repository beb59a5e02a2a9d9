"""TokenLoss: combines all loss terms of a trained token.

The loss is importance weight * policy loss, for tokens within the bounds, + coefficient * KL estimate. Invariant: a
single place defines the terms and their order, so that every backbone trains the same loss. The caller applies token
weights (DESIGN decision 8) and sums. Callers that process a reply in several passes also compute the statistics of
complete replies (`ReplyStatistics`).
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
    """Terms of a token's loss, each [T]. Gradients flow through `loss` only."""

    loss: Tensor
    clipped: Tensor
    """True where a bound cut off the gradient."""
    weights: Tensor | None
    """Importance weights. None without a cap."""
    capped: Tensor | None
    """True where a weight was held at `is_cap` or its token masked. None without a cap."""
    divergence: Tensor | None
    """The KL estimate. None without a KL term."""


class ReplyStatistics(NamedTuple):
    """Statistics of the complete reply of each token, each [T] and constant in the gradient."""

    drift: Tensor | None = None
    """`LossInputs.drift`, read if the policy loss is `over_replies`."""
    gaps: Tensor | None = None
    """`ImportanceCorrection.gaps`, read if the correction is `over_replies`."""
    chosen: Tensor | None = None
    """`LossInputs.chosen`, read if the policy loss is `over_batch`."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of a token with all its settings."""

    policy: PolicyLoss
    correction: ImportanceCorrection | None
    """None: all importance weights are 1."""
    bounds: StaleBounds | None
    """None: no token is left out."""
    behaviour: bool
    """True: the ratio compares with the sampling policy. False: with the policy before the update."""
    kl_coef: float | None
    """None: the loss has no KL term."""
    kl_type: Estimator

    @classmethod
    def from_settings(cls, trainer: TrainerConfig, algorithm: Algorithm) -> TokenLoss:
        """Create the token loss from `trainer_common` and the algorithm."""
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
        """The upper bound of importance weights. None: all weights are 1."""
        return self.correction.cap if self.correction is not None else None

    @property
    def over_replies(self) -> bool:
        """True if a term depends on complete replies, so the loss reads `ReplyStatistics`."""
        return self.policy.over_replies or self._corrects_replies

    @property
    def needs_old_logprobs(self) -> bool:
        """True if logprobs before the update are needed even with a single optimizer step."""
        return self.over_replies or self.policy.over_batch

    @property
    def _corrects_replies(self) -> bool:
        return self.correction is not None and self.correction.over_replies

    def tighten(self, gap: float | None, alarm: float | None) -> TokenLoss:
        """Return a loss whose importance weights are bounded more tightly, if engine and trainer disagree.

        Args:
            gap: mean distance between engine and trainer logprobs, in nats per token.
            alarm: distance above which the bound is tightened.
        """
        tightened = self.correction.tighten(gap, alarm) if self.correction is not None else None
        return self if tightened is self.correction else replace(self, correction=tightened)

    def compute_reply_statistics(
        self, present_K: Tensor, old_K: Tensor, engine_K: Tensor, replies_K: Tensor
    ) -> ReplyStatistics:
        """Compute statistics for all K trained tokens of complete replies.

        Args:
            present_K: The policy's present logprobs.
            old_K: The policy's logprobs before the update.
            engine_K: Logprobs of the sampling engine.
            replies_K: Reply ids; equal ids mark tokens of one reply.
        """
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
        """Compute all loss terms of T tokens. Raise ValueError if a required input is missing.

        Args:
            old_T: The policy's logprobs before the update.
            engine_T: Logprobs of the sampling distribution, read with `is_cap` and `old_policy: behaviour`.
            reference_T: The reference model's logprobs, read with `kl_coef`.
            ages_T: Token ages for `StaleBounds`.
        """
        compared_T = self._require_engine_logprobs(engine_T) if self.behaviour else old_T
        drift = replies.drift if replies is not None else None
        is_chosen = replies.chosen if replies is not None else None
        loss, clipped = self.policy(LossInputs(logprobs_T, compared_T, advantages_T, drift, is_chosen))
        if self.bounds is not None:
            # The bounds use the ratio that the loss uses: the reply's, or the token's own.
            log_ratio_T = drift if drift is not None else logprobs_T.detach() - compared_T
            outside = self.bounds.find_outside(log_ratio_T, advantages_T, ages_T)
            loss, clipped = loss.masked_fill(outside, 0.0), clipped | outside
        weights = capped = divergence = None
        if self.correction is not None:
            gaps = replies.gaps if replies is not None else None
            if gaps is None:
                if self.correction.over_replies:
                    raise ValueError("importance weights of replies need statistics of complete replies")
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
        """Return the engine's logprobs. Raises ValueError if they are missing."""
        if engine_T is None:
            raise ValueError("importance weights and the behaviour policy's ratio need the engine's logprobs")
        return engine_T
