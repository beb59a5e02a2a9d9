"""MINIRL: REINFORCE, each token weighed by its own ratio.

Stabilizing Reinforcement Learning with LLMs, arXiv 2512.01374, section 2: -sg(r) A log p, r the ratio of the present
policy to the one that sampled (`old_policy: behaviour`): the token's first-order part of the sequence's objective.
Which tokens are left out for being too far away, the bounds of stale tokens say, as in AgentRL
(`importance_weight_cap_ratio`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class MinirlLoss(PolicyLoss):
    """-sg(r) A log p."""

    formula = "−sg(ρ)·A·log π"
    paper = "MiniRL, arXiv 2512.01374, section 2; AgentRL's MINIRL"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        ratio = (tokens.logprobs.detach() - tokens.old).exp()
        return -ratio * tokens.advantages * tokens.logprobs, torch.zeros_like(ratio, dtype=torch.bool)
