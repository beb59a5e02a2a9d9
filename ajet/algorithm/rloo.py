"""REINFORCE leave-one-out: each attempt's baseline is the mean of the others.

Back to Basics, arXiv 2402.14740, section 3.3: A_i = r_i - mean of r_j over j != i.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def advantages(returns_G: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[k] one advantage per attempt, from the [k] returns of one group; all 0 when the returns are equal."""
    k = returns_G.size
    if k < 2 or np.ptp(returns_G) == 0:
        return np.zeros_like(returns_G)
    return (returns_G - returns_G.mean()) * (k / (k - 1))
