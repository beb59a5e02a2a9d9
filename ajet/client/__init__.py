"""A client of `ajet serve`: episodes for an agent on any machine; it needs httpx and nothing else.

In: the server's address and its admin key. Out: episodes with an address and a key for the agent, and what the server
made of how they went. Invariant: this room imports no other of ajet's; what the server acknowledged is asked for once,
what it may not have heard is said again.
"""

from ajet.client.client import Client
from ajet.client.episode import Episode
from ajet.client.refusals import EpisodeLost, Refused, Unreachable

__all__ = ["Client", "Episode", "EpisodeLost", "Refused", "Unreachable"]
