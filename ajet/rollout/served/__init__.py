"""Episodes of external agents: programs that open an episode over HTTP, play it, and report its output or failure.

Input: requests for episodes, with a task or for the next task of the task reader, and reports. Output: episodes, and
groups once all attempts at a task are in. Invariant: served episodes have the same contents as a Workflow's (calls,
timelines, verdict, counted reasons). If no client finishes an episode, the server ends the episode and records a
failure.
"""

from ajet.rollout.served.episode import EpisodeRequest
from ajet.rollout.served.finisher import EpisodeStore
from ajet.rollout.served.http import make_routes
from ajet.rollout.served.registry import EpisodeRegistry

__all__ = ["EpisodeRegistry", "EpisodeRequest", "EpisodeStore", "make_routes"]
