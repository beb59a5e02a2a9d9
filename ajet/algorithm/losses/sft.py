"""Likelihood: replies that are given become likelier, the more, the larger their weight.

Supervised fine-tuning is its case A = 1, the negative log-likelihood (InstructGPT, arXiv 2203.02155, section 3.5). Its
gradient is that of any loss of whole replies whose derivative by their log-probability is -A, as `dpo` has one. There
is no ratio: whoever sampled or wrote the tokens is not asked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class SftLoss(PolicyLoss):
    """-A log p."""

    formula = "−A·log π"
    paper = "supervised fine-tuning where A = 1: InstructGPT, arXiv 2203.02155, section 3.5"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        return -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.logprobs, dtype=torch.bool)
