"""Episodes of external agents: programs that open one over HTTP, play it, and report its outcome.

In: requests for episodes, with a task or for the next one of the task reader; outcomes. Out: episodes, and groups once
all attempts at a task are in. Invariant: these episodes hold the same as a Workflow's (calls, timelines, verdict,
counted reasons); one that no client finishes is ended by the server and recorded as failed.
"""

from ajet.rollout.served.episode import EpisodeRequest
from ajet.rollout.served.finisher import EpisodeStore
from ajet.rollout.served.http import make_routes
from ajet.rollout.served.registry import EpisodeRegistry

__all__ = ["EpisodeRegistry", "EpisodeRequest", "EpisodeStore", "make_routes"]
