"""Clip-Cov: the clipped ratio without gradient for some of the tokens that reduce entropy most.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617, section 4.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ajet.algorithm.contract import Row
from ajet.algorithm.loss_terms import policy_loss
from ajet.algorithm.losses.contract import LossInputs, PolicyLoss, TokenMask, compute_covariances, draw_between


class ClipCovLoss(PolicyLoss):
    """The clipped loss, set to 0 for tokens chosen by their covariance."""

    formula = (
        "that of `clipped`; 0 for `covariance.share` of the tokens, drawn from those whose covariance (log π − "
        "mean)·(A − mean) lies between `low` and `high`"
    )
    paper = "Clip-Cov, arXiv 2505.22617, section 4"
    over_batch = True

    def choose(self, logprobs_N: Row, advantages_N: Row, draw: np.random.Generator) -> TokenMask:
        """Choose random tokens with a covariance between the bounds."""
        cov = self.settings.covariance
        return draw_between(compute_covariances(logprobs_N, advantages_N), cov.share, cov.low, cov.high, draw)

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses of the clipped ratio, 0 for chosen tokens, and [T] booleans, True without a gradient."""
        low, high, dual = self.settings.clip_low, self.settings.clip_high, self.settings.clip_dual
        loss, clipped = policy_loss(
            tokens.logprobs, tokens.old, tokens.advantages, clip_low=low, clip_high=high, clip_dual=dual
        )
        is_chosen = tokens.require_chosen()
        return loss.masked_fill(is_chosen, 0.0), clipped | is_chosen
