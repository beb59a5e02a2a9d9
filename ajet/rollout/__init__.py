"""Tasks to episodes: concurrency, isolation, limits, retries, groups, abnormal-output checks.

In: (order, task) pairs, a workflow class, a gateway, a judge. Out: for each of them a closed group of episodes, each
filled in full (calls, timelines, verdict, counted reasons), or that it is given back. Invariant: a failure is data:
every repeat of every task ends as one episode, and no episode's failure, hang or noise reaches another.
"""

from ajet.rollout.play import Closed, GivenBack, PlayTally
from ajet.rollout.rollout import Rollout
from ajet.rollout.rounds import RoundEngine

__all__ = ["Closed", "GivenBack", "Rollout", "RoundEngine", "PlayTally"]
