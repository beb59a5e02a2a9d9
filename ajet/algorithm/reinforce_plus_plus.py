"""REINFORCE++: no group baseline; returns are normalised over the complete batch.

REINFORCE++, arXiv 2501.03262, section 3: A_t = r - beta * sum of KL_i over i >= t, then (A - mean) / std over the
batch. Mean and standard deviation are over episodes (DESIGN decision 8): each episode counts once and its tokens share
the weight, so that long episodes do not dominate the baseline. Without a KL term the result is (r - mean(r)) / std(r).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.algorithm.contract import Algorithm, Row

EPSILON = 1e-6


class ReinforcePlusPlus(Algorithm):
    """Compare each episode with the batch. A single attempt at a task is enough."""

    formula = "(r_i − mean) / (std + 1e-6) over the episodes of the whole batch"
    paper = "REINFORCE++, arXiv 2501.03262, section 3"
    needs = frozenset()

    def advantages(self, rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]) -> list[Row]:
        """Normalise each token's return over the batch: mean and deviation are over episodes. Equal returns give 0."""
        # The return of a token is the reward less the KL penalties of itself and all later tokens.
        returns = [
            reward - np.cumsum(penalty[::-1])[::-1] for reward, penalty in zip(rewards_E, penalties_E_T, strict=True)
        ]
        rows_with_tokens = [row for row in returns if row.size]
        if len(rows_with_tokens) < 2:
            return [np.zeros_like(row) for row in returns]
        if all(np.ptp(row) == 0 for row in rows_with_tokens) and np.ptp([row[0] for row in rows_with_tokens]) == 0:
            return [np.zeros_like(row) for row in returns]
        mean = float(np.mean([row.mean() for row in rows_with_tokens]))
        variance = float(np.sum([np.mean((row - mean) ** 2) for row in rows_with_tokens])) / (len(rows_with_tokens) - 1)
        return [(row - mean) / (variance**0.5 + EPSILON) for row in returns]
