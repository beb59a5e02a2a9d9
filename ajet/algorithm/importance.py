"""Importance weights against the policy that sampled, and what becomes of tokens that are too far from it.

The engine that samples and the trainer that differentiates are two programs; where they disagree, or where the engine
had earlier weights (stale tokens), training is off-policy without saying so. Your Efficient RL Framework Secretly
Brings You Off-Policy RL Training (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl): weigh each token's loss
by min(trainer / engine, cap), a constant in the gradient. For staleness this is the decoupled objective of AReaL
(arXiv 2505.24298) and of Batch size-invariance for policy optimization (arXiv 2110.00641): the ratio that is clipped
stays that of the policy to the one before the update.

`is_mode` says of what the ratio w is, and what becomes of one beyond its bound:
    token_       w = exp(g_t), g_t = log trainer - log engine of the token (Yao et al.)
    sequence_    w = exp(sum of g over the reply) (When Speed Kills Stability, Liu, Li et al., 2025,
                 https://richardli.xyz/rl-collapse: unbiased, of high variance)
    geometric_   w = exp(mean of g over the reply) (likewise; GSPO's ratio, arXiv 2507.18071)
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
    """Importance weights of tokens: their form, their cap and their floor."""

    cap: float
    mode: Mode = "token_truncate"
    floor: float = 0.0

    @classmethod
    def from_settings(cls, trainer: TrainerConfig) -> ImportanceCorrection | None:
        """The correction that `trainer_common` asks for; None: every weight is 1."""
        cap, settings = trainer.importance_cap, trainer.algorithm
        return None if cap is None else cls(cap, settings.is_mode, settings.is_floor)

    @property
    def over_replies(self) -> bool:
        """Whether a weight depends on the whole reply."""
        return not self.mode.startswith("token")

    def gaps(self, trainer_K: Tensor, engine_K: Tensor, replies_K: Tensor) -> Tensor:
        """[K] the logarithm of each trained token's ratio, of all tokens of their replies."""
        gap = trainer_K.detach() - engine_K
        if not self.over_replies:
            return gap
        return (sum_by_reply if self.mode.startswith("sequence") else average_by_reply)(gap, replies_K)

    def weights(self, gaps_T: Tensor) -> Tensor:
        """[T] constants in the gradient."""
        ratio = gaps_T.exp()
        if self.mode.endswith("truncate"):
            return ratio.clamp(max=self.cap)
        return torch.where((ratio <= self.cap) & (ratio >= self.floor), ratio, torch.zeros_like(ratio))

    def find_bounded(self, weights_T: Tensor) -> Tensor:
        """[T] where the bound had an effect: held at it, or not trained."""
        return weights_T >= self.cap if self.mode.endswith("truncate") else weights_T == 0

    def tighten(self, gap: float | None, alarm: float | None) -> ImportanceCorrection:
        """This correction with a bound closer to 1, the more the mean distance `gap` between the two programs' logprobs
        of the same weights is above `alarm`, both nats a token: cap' - 1 = (cap - 1) alarm / gap. A property of what
        was measured alone, so that a resumed run has the same."""
        if gap is None or alarm is None or gap <= alarm:
            return self
        part = alarm / gap if gap == gap else 0.0  # a gap that is no number: no ratio above 1 is believed
        return replace(self, cap=1 + (self.cap - 1) * part) if self.cap > 1 else self


def stale_metrics(tokens: int, stale: int, weight: float, capped: int) -> dict[str, float]:
    """The metrics of an update over `tokens` trained tokens, of which earlier weights sampled `stale`, with importance
    weights that add up to `weight`, of which `capped` were held at the cap. Nothing where none was stale."""
    if not stale:
        return {}
    return {
        "stale_fraction": stale / tokens,
        "stale_is_weight_mean": weight / stale,
        "stale_is_capped_fraction": capped / stale,
    }


@dataclass(frozen=True, slots=True)
class StaleBounds:
    """The two bounds of a ratio beyond which AgentRL trains no token: the policy has gone far enough.

    With r the ratio that the loss refers to, A the advantage: a token is left out where A > 0 and
    r > 1 + clip_high c d, or A < 0 and r < 1 - clip_low c d (AgentCPM-Explore, AgentRL/src/training, 2026; the
    asymmetric mask of MiniRL, arXiv 2512.01374, section 2). c is `importance_weight_cap_ratio`; d is 1 / c with
    `strict_in_bound`, else exp(-age * out_of_date_decay): the older the weights that sampled the token, the closer to 1
    the bounds. The token's weight in the mean stays: what is left out adds 0.
    """

    clip_low: float
    clip_high: float
    ratio: float
    strict: bool
    decay: float | None

    @classmethod
    def from_settings(cls, settings: Settings) -> StaleBounds | None:
        """The bounds that the settings ask for; None: no token is left out."""
        ratio = settings.importance_weight_cap_ratio
        if ratio is None:
            return None
        bounds = settings.clip_low, settings.clip_high
        return cls(*bounds, ratio, settings.strict_in_bound, settings.out_of_date_decay)

    @property
    def needs_ages(self) -> bool:
        """Whether the bounds depend on the tokens' ages, so that `ages_T` is read."""
        return self.decay is not None and not self.strict

    def find_outside(self, logratio_T: Tensor, advantages_T: Tensor, ages_T: Tensor | None) -> Tensor:
        """[T] booleans: the tokens that are left out. `ages_T`: policy versions between the weights that sampled each
        token and those that are updated. Raises ValueError where it lacks."""
        width: Tensor | float = 1.0 if self.strict else self.ratio
        if self.needs_ages:
            if ages_T is None:
                raise ValueError("bounds that narrow with age need each token's age")
            assert self.decay is not None
            width = self.ratio * torch.exp(-self.decay * ages_T.clamp(min=0).to(logratio_T.dtype))
        ratio = logratio_T.exp()
        above = (advantages_T > 0) & (ratio > 1 + self.clip_high * width)
        return above | ((advantages_T < 0) & (ratio < 1 - self.clip_low * width))
