"""MaxRL: advantages are divided by the group's mean, so that rarely solved tasks count most.

Maximum Likelihood Reinforcement Learning, arXiv 2602.02710: A_i = (r_i - mean(r)) / mean(r) over the k attempts at one
task, for rewards of 0 and 1. With p the success rate, this is in expectation the gradient of the first k - 1 terms of
log p = -sum over n of (1 - p)^n / n: a rarely solved task weighs about 1 / p times as much as in REINFORCE. The divisor
here is the mean of |r|. It is the same for rewards of at least 0, and advantages stay bounded where rewards or KL
penalties make returns negative.
"""

from __future__ import annotations

import numpy as np

from ajet.algorithm.contract import Algorithm, Row


class MaxRl(Algorithm):
    """Compare attempts within a group, in units of the group's mean."""

    formula = "(r_i − mean(r)) / mean(abs(r))"
    paper = "MaxRL, arXiv 2602.02710"
    needs = frozenset({"group"})

    def of_group(self, returns_G: Row) -> Row:
        """Subtract the group's mean and divide by the mean of the absolute returns. Equal returns give 0."""
        if returns_G.size < 2 or np.ptp(returns_G) == 0:
            return np.zeros_like(returns_G)
        return (returns_G - returns_G.mean()) / np.abs(returns_G).mean()
