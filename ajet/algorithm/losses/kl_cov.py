"""KL-Cov: the unbounded ratio, with a KL penalty on the tokens that reduce entropy most.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617, section 4: -A r plus
beta |log p - log old| for the chosen tokens, the estimate used in the authors' code. The derivative is 0 at r = 1 and
small within 1 % of 1 (`smooth_abs`), because smaller differences are rounding. The penalty therefore acts from the
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
    """-A r + beta |log r| for the chosen tokens. No gradient is cut off."""

    formula = "−A·ρ, plus `covariance.beta`·abs(log ρ) for the `share` of the tokens with the largest covariance"
    paper = "KL-Cov, arXiv 2505.22617, section 4"
    over_batch = True

    def choose(self, logprobs_N: Row, advantages_N: Row, draw: np.random.Generator) -> TokenMask:
        """Choose the tokens with the largest covariance."""
        return select_largest(compute_covariances(logprobs_N, advantages_N), self.settings.covariance.share)

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, with a KL penalty on the chosen tokens, and [T] booleans, all False."""
        log_ratio = tokens.logprobs - tokens.old
        penalty = self.settings.covariance.beta * smooth_abs(log_ratio)
        loss = -tokens.advantages * log_ratio.exp() + penalty.masked_fill(~tokens.require_chosen(), 0.0)
        return loss, torch.zeros_like(log_ratio, dtype=torch.bool)
