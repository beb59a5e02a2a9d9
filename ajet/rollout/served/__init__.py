"""Episodes of agents outside: programs that ask for one over HTTP, play it, and say how it went.

In: requests for episodes, with a task or for the next one of the task reader; outcomes. Out: episodes, and groups of
them once all attempts at a task are in. Invariant: they are what a Workflow's are (calls, timelines, verdict, counted
reasons); one that nobody finishes ends by itself and is recorded as failed.
"""

from ajet.rollout.served.desk import Desk
from ajet.rollout.served.ending import Keeper
from ajet.rollout.served.episode import Opening
from ajet.rollout.served.http import routes

__all__ = ["Desk", "Keeper", "Opening", "routes"]
