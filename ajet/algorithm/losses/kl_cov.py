"""KL-Cov: the ratio without bounds, and a KL penalty on the tokens that would take most of the entropy away.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617, section 4: -A r and,
for the chosen ones, + beta |log p - log old|, as the authors' own code estimates the divergence. At r = 1 its
derivative is 0 and within 1 % of it small (`smooth_abs`), because such differences are rounding: it acts from the
second optimizer step of a training step on.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ajet.algorithm.contract import Row
from ajet.algorithm.loss_terms import smooth_abs
from ajet.algorithm.losses.contract import LossInputs, PolicyLoss, TokenMask, compute_covariances, select_largest


class KlCovLoss(PolicyLoss):
    """-A r + beta |log r| of the chosen ones. Nothing is cut off."""

    formula = "−A·ρ, plus `covariance.beta`·abs(log ρ) for the `share` of the tokens with the largest covariance"
    paper = "KL-Cov, arXiv 2505.22617, section 4"
    over_batch = True

    def choose(self, logprobs_N: Row, advantages_N: Row, draw: np.random.Generator) -> TokenMask:
        """The largest ones."""
        return select_largest(compute_covariances(logprobs_N, advantages_N), self.settings.covariance.share)

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        moved = tokens.logprobs - tokens.old
        penalty = self.settings.covariance.beta * smooth_abs(moved)
        loss = -tokens.advantages * moved.exp() + penalty.masked_fill(~tokens.require_chosen(), 0.0)
        return loss, torch.zeros_like(moved, dtype=torch.bool)
