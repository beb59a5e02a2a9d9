"""Importance weights against the sampling policy, and bounds for tokens too far from that policy.

The sampling engine and the trainer are two programs. If they disagree, or if the engine had earlier weights (stale
tokens), training is silently off-policy. Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (Yao et
al., 2025, https://fengyao.notion.site/off-policy-rl) weighs each token's loss by min(trainer / engine, cap), a constant
in the gradient. For stale tokens this equals the decoupled objective of AReaL (arXiv 2505.24298) and of Batch
size-invariance for policy optimization (arXiv 2110.00641): the clipped ratio still compares the policy with the policy
before the update.

`is_mode` selects the ratio w and the treatment of ratios beyond the bound:

    token_       w = exp(g_t), g_t = log trainer - log engine of the token (Yao et al.)
    sequence_    w = exp(sum of g over the reply) (When Speed Kills Stability, Liu, Li et al., 2025,
                 https://richardli.xyz/rl-collapse: unbiased, of high variance)
    geometric_   w = exp(mean of g over the reply) (same source; GSPO's ratio, arXiv 2507.18071)
    _truncate    min(w, cap)
    _mask        w where is_floor <= w <= cap, else 0: the token is not trained (IcePop, Every Step Evolves, arXiv
                 2510.18855, section 3; with replies the masked importance sampling of Liu, Li et al.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ajet.algorithm.loss_terms import average_by_reply, sum_by_reply

if TYPE_CHECKING:
    from ajet.config.schema.algorithm import AlgorithmConfig as Settings
    from ajet.config.schema.trainer_common import TrainerConfig


Mode = Literal[
    "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"
]


@dataclass(frozen=True, slots=True)
class ImportanceCorrection:
    """Computes importance weights of tokens: trainer against sampling policy, truncated or masked."""

    cap: float
    mode: Mode = "token_truncate"
    floor: float = 0.0

    @classmethod
    def from_settings(cls, trainer: TrainerConfig) -> ImportanceCorrection | None:
        """Read the correction from `trainer_common`. Return None if every weight is 1."""
        cap, settings = trainer.importance_cap, trainer.algorithm
        return None if cap is None else cls(cap, settings.is_mode, settings.is_floor)

    @property
    def over_replies(self) -> bool:
        """True if the weight of a token depends on its complete reply."""
        return not self.mode.startswith("token")

    def gaps(self, trainer_K: Tensor, engine_K: Tensor, replies_K: Tensor) -> Tensor:
        """Return [K] log ratios trainer - engine of trained tokens, per token or combined over the reply.

        Args:
            trainer_K: the trainer's logprobs, with all tokens of each reply.
            engine_K: logprobs of the sampling engine.
            replies_K: reply ids; equal ids mark tokens of one reply.
        """
        gap = trainer_K.detach() - engine_K
        if not self.over_replies:
            return gap
        return (sum_by_reply if self.mode.startswith("sequence") else average_by_reply)(gap, replies_K)

    def weights(self, gaps_T: Tensor) -> Tensor:
        """Return [T] importance weights, constants in the gradient."""
        ratio = gaps_T.exp()
        if self.mode.endswith("truncate"):
            return ratio.clamp(max=self.cap)
        return torch.where((ratio <= self.cap) & (ratio >= self.floor), ratio, torch.zeros_like(ratio))

    def find_bounded(self, weights_T: Tensor) -> Tensor:
        """Return [T] booleans: True where the weight was capped or the token masked."""
        return weights_T >= self.cap if self.mode.endswith("truncate") else weights_T == 0

    def tighten(self, gap: float | None, alarm: float | None) -> ImportanceCorrection:
        """Return a correction with a cap closer to 1 if engine and trainer disagree.

        The new cap is 1 + (cap - 1) alarm / gap if `gap` exceeds `alarm`. It depends on the measurement alone, so a
        resumed run gets the same cap.

        Args:
            gap: mean distance between engine and trainer logprobs for equal weights, in nats per token.
            alarm: distance above which the cap is reduced, in nats per token.
        """
        if gap is None or alarm is None or gap <= alarm:
            return self
        scale = alarm / gap if gap == gap else 0.0  # NaN gap: allow no ratio above 1
        return replace(self, cap=1 + (self.cap - 1) * scale) if self.cap > 1 else self


def stale_metrics(tokens: int, stale: int, weight: float, capped: int) -> dict[str, float]:
    """Return the staleness metrics of an update, empty without stale tokens.

    Args:
        tokens: Number of trained tokens.
        stale: Number of trained tokens sampled by earlier weights.
        weight: Sum of the stale tokens' importance weights.
        capped: Number of stale tokens with a weight held at the cap.
    """
    if not stale:
        return {}
    return {
        "stale_fraction": stale / tokens,
        "stale_is_weight_mean": weight / stale,
        "stale_is_capped_fraction": capped / stale,
    }


@dataclass(frozen=True, slots=True)
class StaleBounds:
    """AgentRL's two bounds of the ratio. Tokens beyond a bound are not trained.

    With r the ratio used by the loss and A the advantage, a token is left out if A > 0 and r > 1 + clip_high c d, or if
    A < 0 and r < 1 - clip_low c d (AgentCPM-Explore, AgentRL/src/training, 2026; the asymmetric mask of MiniRL, arXiv
    2512.01374, section 2). c is `importance_weight_cap_ratio`. d is 1 / c with `strict_in_bound`, else exp(-age *
    out_of_date_decay): the older the sampling weights of the token, the closer to 1 the bounds. The token's weight in
    the mean stays, so a token left out adds 0.
    """

    clip_low: float
    clip_high: float
    ratio: float
    strict: bool
    decay: float | None

    @classmethod
    def from_settings(cls, settings: Settings) -> StaleBounds | None:
        """Read the bounds from the settings. Return None if no token is to be left out."""
        ratio = settings.importance_weight_cap_ratio
        if ratio is None:
            return None
        bounds = settings.clip_low, settings.clip_high
        return cls(*bounds, ratio, settings.strict_in_bound, settings.out_of_date_decay)

    @property
    def needs_ages(self) -> bool:
        """True if the bounds depend on the age of a token (`ages_T`)."""
        return self.decay is not None and not self.strict

    def find_outside(self, logratio_T: Tensor, advantages_T: Tensor, ages_T: Tensor | None) -> Tensor:
        """Return [T] booleans: True for tokens to leave out. Raise ValueError if `ages_T` is needed and missing.

        Args:
            ages_T: Policy versions between the weights that sampled each token and the weights being updated.
        """
        width: Tensor | float = 1.0 if self.strict else self.ratio
        if self.needs_ages:
            if ages_T is None:
                raise ValueError("out_of_date_decay needs each token's age")
            assert self.decay is not None
            width = self.ratio * torch.exp(-self.decay * ages_T.clamp(min=0).to(logratio_T.dtype))
        ratio = logratio_T.exp()
        above = (advantages_T > 0) & (ratio > 1 + self.clip_high * width)
        return above | ((advantages_T < 0) & (ratio < 1 - self.clip_low * width))
