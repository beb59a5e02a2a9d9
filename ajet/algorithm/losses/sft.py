"""Supervised likelihood: raise the likelihood of given replies in proportion to their weight.

Supervised fine-tuning is the case A = 1, the negative log-likelihood (InstructGPT, arXiv 2203.02155, section 3.5). The
gradient equals the gradient of any sequence loss with derivative -A by the reply's log-probability, for example `dpo`.
There is no ratio, so the source of the tokens does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class SftLoss(PolicyLoss):
    """Negative log-likelihood weighed by the advantage: -A log p."""

    formula = "−A·log π"
    paper = "supervised fine-tuning where A = 1: InstructGPT, arXiv 2203.02155, section 3.5"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, and [T] booleans, all False: there is no bound."""
        return -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.logprobs, dtype=torch.bool)
