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

from ajet.algorithm.replies import means, sums

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import TrainerCommon

Mode = Literal[
    "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_truncate", "geometric_mask"
]


@dataclass(frozen=True, slots=True)
class Correction:
    """Importance weights of tokens: their form, their cap and their floor."""

    cap: float
    mode: Mode = "token_truncate"
    floor: float = 0.0

    @classmethod
    def from_settings(cls, trainer: TrainerCommon) -> Correction | None:
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
        return (sums if self.mode.startswith("sequence") else means)(gap, replies_K)

    def weights(self, gaps_T: Tensor) -> Tensor:
        """[T] constants in the gradient."""
        ratio = gaps_T.exp()
        if self.mode.endswith("truncate"):
            return ratio.clamp(max=self.cap)
        return torch.where((ratio <= self.cap) & (ratio >= self.floor), ratio, torch.zeros_like(ratio))

    def bounded(self, weights_T: Tensor) -> Tensor:
        """[T] where the bound had an effect: held at it, or not trained."""
        return weights_T >= self.cap if self.mode.endswith("truncate") else weights_T == 0

    def tightened(self, gap: float | None, alarm: float | None) -> Correction:
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
