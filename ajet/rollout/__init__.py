"""Plays tasks and returns episodes: concurrency, isolation, limits, retries, groups, checks of abnormal output.

Input: (order, task) pairs, a workflow class, a gateway, a judge. Output: for each task a closed group of complete
episodes (calls, timelines, verdict, counted reasons), or the returned task. Invariant: a failure is data. Every repeat
of every task ends as one episode, and no episode's failure, hang or output affects another.

The path of an episode: `rollout` starts the episode, `group` assigns a slot and collects the result, `episode_player`
plays the attempts, `attempt_runner` plays one `attempt` in an isolation, `judge_caller` gets the verdict, `failure`
classifies errors, `episode` builds the result, and `breaker` pauses all episodes during an outage. Episodes of external
agents (`served`) use the same parts.
"""

from ajet.rollout.group import ClosedGroup, ReturnedTask
from ajet.rollout.rollout import Rollout
from ajet.rollout.rounds import RoundEngine

__all__ = ["ClosedGroup", "ReturnedTask", "Rollout", "RoundEngine"]
