"""Algorithms as users write them, for tests that name them by reference."""

from __future__ import annotations

import numpy as np

from ajet import Algorithm
from ajet.algorithm.losses.contract import PolicyLoss


class AgainstTheMedian(Algorithm):
    """With a policy loss of its own: the logarithm of the ratio in place of the ratio, never bounded."""

    def of_group(self, returns_G):
        return returns_G - np.median(returns_G)

    def policy_loss(self, logprobs_T, old_T, advantages_T):
        return -advantages_T * (logprobs_T - old_T), logprobs_T > 0


class Choosy(PolicyLoss):
    """It chooses among the tokens of a batch."""

    over_batch = True
