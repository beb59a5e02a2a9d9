"""CISPO: the ratio is a clipped weight, so every token has a gradient.

MiniMax-M1, arXiv 2506.13585, section 3.1: -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p. (The paper omits the lower
bound: `clip_low: 1`.)
"""

from __future__ import annotations

from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class CispoLoss(PolicyLoss):
    """-sg(clip(r)) A log p. Tokens reported as clipped have a bounded weight and still a gradient."""

    formula = "−sg(clip(ρ, 1 − clip_low, 1 + clip_high))·A·log π"
    paper = "CISPO in MiniMax-M1, arXiv 2506.13585, section 3.1"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, and [T] booleans, True where the ratio was clipped. All tokens have a gradient."""
        ratio = (tokens.logprobs.detach() - tokens.old).exp()
        weight = ratio.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        return -weight * tokens.advantages * tokens.logprobs, weight != ratio
