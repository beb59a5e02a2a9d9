"""REINFORCE leave-one-out: each attempt's baseline is the mean of the other attempts.

Back to Basics, arXiv 2402.14740, section 3.3: A_i = r_i - mean of r_j over j != i.
"""

from __future__ import annotations

import numpy as np

from ajet.algorithm.contract import Algorithm, Row


class Rloo(Algorithm):
    """Unbiased: an attempt's reward is not part of its baseline."""

    formula = "r_i − mean of the other r_j"
    paper = "Back to Basics, arXiv 2402.14740, section 3.3"
    needs = frozenset({"group"})

    def of_group(self, returns_G: Row) -> Row:
        """Subtract the mean of the group's other attempts. Equal returns give 0."""
        k = returns_G.size
        if k < 2 or np.ptp(returns_G) == 0:
            return np.zeros_like(returns_G)
        return (returns_G - returns_G.mean()) * (k / (k - 1))  # equals r_i less the mean of the other k - 1
