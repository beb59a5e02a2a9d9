"""The one address in front of an environment's servers, for MCP clients of every era and for AgentDock's.

What enters: an environment's description and what opens its servers. What leaves: an ASGI app. Invariants: the token is
checked, in constant time, before anything is read; each episode has an address of its own that nobody can guess, and
servers of its own where they keep state; a server that dies loses the episodes that it served and no other, and none
of them silently goes on with another; nothing of the caller's (its token, its Origin) reaches a server.
"""

from ajet_environments.front.app import Front, build_front
from ajet_environments.front.episodes import EnvironmentFullError, EpisodeLostError, FrontEpisodes

__all__ = ["FrontEpisodes", "Front", "EnvironmentFullError", "EpisodeLostError", "build_front"]
