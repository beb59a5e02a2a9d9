"""MINIRL: REINFORCE with each token weighed by its ratio.

Stabilizing Reinforcement Learning with LLMs, arXiv 2512.01374, section 2: -sg(r) A log p, with r the ratio of the
present policy to the sampling policy (`old_policy: behaviour`). The term is the token's first-order part of the
sequence objective. As in AgentRL, the bounds of stale tokens (`importance_weight_cap_ratio`) leave out distant tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class MinirlLoss(PolicyLoss):
    """REINFORCE weighed by the ratio: -sg(r) A log p."""

    formula = "−sg(ρ)·A·log π"
    paper = "MiniRL, arXiv 2512.01374, section 2; AgentRL's MINIRL"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, and [T] booleans, all False: no bound cuts off a gradient."""
        ratio = (tokens.logprobs.detach() - tokens.old).exp()
        return -ratio * tokens.advantages * tokens.logprobs, torch.zeros_like(ratio, dtype=torch.bool)
