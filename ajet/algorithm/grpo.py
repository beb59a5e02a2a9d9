"""Group-relative advantages: GRPO, and Dr.GRPO without the division by the standard deviation.

DeepSeekMath, arXiv 2402.03300, section 4.1.1: A_i = (r_i - mean(r)) / std(r) over the k attempts at one task.
Understanding R1-Zero-Like Training (Dr.GRPO), arXiv 2503.20783, section 3.2: A_i = r_i - mean(r).
The standard deviation is the sample's (k - 1 in the denominator).
"""

from __future__ import annotations

import numpy as np

from ajet.algorithm.contract import Algorithm, Row

EPSILON = 1e-6
"""Added to the standard deviation. Groups of equal rewards get advantages of exactly 0 without it."""


class Grpo(Algorithm):
    """Compare attempts within a group. `norm_adv_by_std: false` selects Dr.GRPO."""

    formula = (
        "(r_i − mean(r)) / (std(r) + 1e-6), std with k − 1 in the denominator; r_i − mean(r) with "
        "`norm_adv_by_std: false`"
    )
    paper = "DeepSeekMath, arXiv 2402.03300, section 4.1.1; Dr.GRPO, arXiv 2503.20783, section 3.2"
    needs = frozenset({"group"})

    def of_group(self, returns_G: Row) -> Row:
        """Subtract the group's mean, and divide by the standard deviation if configured. Equal returns give 0."""
        if returns_G.size < 2 or np.ptp(returns_G) == 0:
            return np.zeros_like(returns_G)
        centred = returns_G - returns_G.mean()
        return centred / (returns_G.std(ddof=1) + EPSILON) if self.settings.norm_adv_by_std else centred
