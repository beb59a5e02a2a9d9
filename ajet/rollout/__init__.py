"""Tasks to episodes: concurrency, isolation, limits, retries, groups, abnormal-output checks.

In: (order, task) pairs, a workflow class, a gateway, a judge. Out: groups of episodes, each filled in full (calls,
timelines, verdict, counted reasons). Invariant: a failure is data: every repeat of every task ends as one episode,
and no episode's failure, hang or noise reaches another.
"""

from ajet.rollout.play import Tally
from ajet.rollout.rollout import Rollout
from ajet.rollout.rounds import RoundEngine

__all__ = ["Rollout", "RoundEngine", "Tally"]
