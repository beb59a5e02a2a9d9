"""RAE: each agent's reward is compared with the same agent's rewards in all episodes of the batch.

Role-conditioned advantage estimation in SPIRAL, arXiv 2506.24119: A = R_a - b_a for agent a (a role of a game), b_a a
running mean of that agent's rewards. In a zero-sum game the mean over both players is 0 whatever the policy does, and
the first player may win more often than the second: only a baseline per agent measures the play. Here b_a is the mean
of agent a's other rewards in the batch, which needs no state: a resumed run and every backbone get the same credit.

Agents' rewards are process rewards, `ProcessReward(agent=…, reward=…)`. The attempt's own reward, 0 in a zero-sum game,
counts for all agents and is compared with those of all other attempts.
"""

from __future__ import annotations

from ajet.algorithm.rloo import Rloo


class Rae(Rloo):
    """Leave-one-out baselines per agent over the batch. One attempt at a task is enough."""

    formula = (
        "for the tokens of agent a: r_a − mean of the other r_a of the batch, plus the attempt's reward less the mean "
        "of the others"
    )
    paper = "RAE in SPIRAL, arXiv 2506.24119"
    needs = frozenset()
    across_tasks = True
