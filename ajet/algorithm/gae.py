"""PPO's advantages: what came after a token, against what a critic expected before it.

High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv 1506.02438, equation 16; Proximal
Policy Optimization, arXiv 1707.06347, equations 11 and 12. Over the trained tokens of one attempt in the order in which
they were sampled, V_t the critic's value before token t, r_t what token t was given:

    delta_t = r_t + gamma V_t+1 - V_t          (V after the last one is 0: an attempt ends)
    A_t = delta_t + gamma lam A_t+1            the return, which the critic is to learn, is A_t + V_t

Invariant: time is counted in tokens that the policy chose. What it was shown between two replies (an observation, a
tool's answer) is part of the state before the next token: it takes no time, has no value and is given nothing. So the
last token of a turn looks ahead to the first of the next one, and cutting an attempt into timelines changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.algorithm.contract import Algorithm, Row

EPSILON = 1e-6
"""Added to the batch's standard deviation; equal advantages do not need it, they are 0."""


class Gae(Algorithm):
    """Compares an attempt with what the critic expected of it, so that one attempt at a task is enough."""

    formula = (
        "of its token t: δ_t + `gamma` `lam` × that of its next token, δ_t = r_t + `gamma` V_t+1 − V_t, V by a "
        "value head; with `norm_adv_by_std` less the batch's mean, divided by its standard deviation"
    )
    paper = "PPO, arXiv 1707.06347; GAE, arXiv 1506.02438, equation 16"
    needs = frozenset({"critic"})

    def of_values(self, rewards_E_T: Sequence[Row], values_E_T: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """The returns are of the advantages before the batch is normalised."""
        settings = self.settings
        pairs = list(zip(rewards_E_T, values_E_T, strict=True))
        rows = [estimate_advantages(rewards, values, settings.gamma, settings.lam) for rewards, values in pairs]
        returns = [row + values for row, (_, values) in zip(rows, pairs, strict=True)]
        return (normalise_advantages(rows) if settings.norm_adv_by_std else rows), returns


def estimate_advantages(rewards_T: Row, values_T: Row, gamma: float, lam: float) -> Row:
    """[T] the advantages of one attempt."""
    following = np.append(values_T[1:], 0.0)
    deltas = rewards_T + gamma * following - values_T
    advantages, ahead = np.zeros(deltas.size), 0.0
    for at in range(deltas.size - 1, -1, -1):
        advantages[at] = ahead = deltas[at] + gamma * lam * ahead
    return advantages


def normalise_advantages(rows_E_T: Sequence[Row]) -> list[Row]:
    """The advantages less their mean, divided by their standard deviation; both are over attempts (DESIGN decision 8):
    each counts once, however long it is. As they are where there is one token."""
    counted = [row for row in rows_E_T if row.size]
    if sum(row.size for row in counted) < 2:
        return list(rows_E_T)
    mean = float(np.mean([row.mean() for row in counted]))
    spread = float(np.mean([np.mean((row - mean) ** 2) for row in counted])) ** 0.5
    return [(row - mean) / (spread + EPSILON) for row in rows_E_T]
