"""Tasks to episodes: concurrency, isolation, limits, retries, groups, abnormal-output checks.

In: (order, task) pairs, a workflow class, a gateway, a judge. Out: for each of them a closed group of episodes, each
filled in full (calls, timelines, verdict, counted reasons), or the task is returned. Invariant: a failure is data:
every repeat of every task ends as one episode, and no episode's failure, hang or noise reaches another.

One episode's way: `rollout` starts it, `group` gives it a slot and takes it back, `episode_player` plays its attempts,
`attempt_runner` plays one `attempt` in an isolation, `verdicts` judges it, `failure` says whose failure it is,
`episode` builds it, and `breaker` pauses all episodes during an outage. Episodes of external agents (`served`) use the
same parts.
"""

from ajet.rollout.group import ClosedGroup, PlayTally, ReturnedTask
from ajet.rollout.rollout import Rollout
from ajet.rollout.rounds import RoundEngine

__all__ = ["ClosedGroup", "PlayTally", "ReturnedTask", "Rollout", "RoundEngine"]
