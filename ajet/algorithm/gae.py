"""PPO's generalized advantage estimation: rewards after a token compared with the critic's value before the token.

High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv 1506.02438, equation 16; Proximal
Policy Optimization, arXiv 1707.06347, equations 11 and 12. Over the trained tokens of an attempt in sampled order, with
V_t the critic's value before token t and r_t the reward of token t:

    delta_t = r_t + gamma V_t+1 - V_t          (V after the last token is 0, because the attempt ends)
    A_t = delta_t + gamma lam A_t+1            the critic's target return is A_t + V_t

Invariant: time is counted in sampled tokens. Text between two replies (an observation, a tool result) is part of the
state before the next token: no time passes, and no value or reward is assigned. The last token of a turn therefore
bootstraps from the first token of the next turn, and splitting an attempt into timelines changes no advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.algorithm.contract import Algorithm, Row

EPSILON = 1e-6
"""Added to the batch's standard deviation. Equal advantages are 0 without it."""


class Gae(Algorithm):
    """PPO's estimator: compares each token's return with the critic's value. Needs one attempt per task only."""

    formula = (
        "of its token t: δ_t + `gamma` `lam` × that of its next token, δ_t = r_t + `gamma` V_t+1 − V_t, V by a "
        "value head; with `norm_adv_by_std` less the batch's mean, divided by its standard deviation"
    )
    paper = "PPO, arXiv 1707.06347; GAE, arXiv 1506.02438, equation 16"
    needs = frozenset({"critic"})

    def of_values(self, rewards_E_T: Sequence[Row], values_E_T: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Return advantages and the critic's target returns, shape [T] per episode.

        With `norm_adv_by_std` the advantages are normalised over the batch. The returns use them before that.
        """
        settings = self.settings
        pairs = list(zip(rewards_E_T, values_E_T, strict=True))
        advantages_E_T = [
            estimate_advantages(rewards, values, settings.gamma, settings.lam) for rewards, values in pairs
        ]
        returns = [advantages_T + values for advantages_T, (_, values) in zip(advantages_E_T, pairs, strict=True)]
        return (normalise_advantages(advantages_E_T) if settings.norm_adv_by_std else advantages_E_T), returns


def estimate_advantages(rewards_T: Row, values_T: Row, gamma: float, lam: float) -> Row:
    """Return the [T] advantages of a single attempt."""
    next_values = np.append(values_T[1:], 0.0)
    deltas = rewards_T + gamma * next_values - values_T
    advantages, next_advantage = np.zeros(deltas.size), 0.0
    for position in range(deltas.size - 1, -1, -1):  # A_t needs A_t+1
        advantages[position] = next_advantage = deltas[position] + gamma * lam * next_advantage
    return advantages


def normalise_advantages(rows_E_T: Sequence[Row]) -> list[Row]:
    """Subtract the mean of the advantages and divide by their standard deviation.

    Both statistics are over attempts (DESIGN decision 8): each attempt counts once, independent of its length. With
    fewer than two tokens in total, the rows are returned unchanged.
    """
    rows_with_tokens = [row for row in rows_E_T if row.size]
    if sum(row.size for row in rows_with_tokens) < 2:
        return list(rows_E_T)
    mean = float(np.mean([row.mean() for row in rows_with_tokens]))
    spread = float(np.mean([np.mean((row - mean) ** 2) for row in rows_with_tokens])) ** 0.5
    return [(row - mean) / (spread + EPSILON) for row in rows_E_T]
