"""The single address in front of an environment's servers, for MCP clients of every era and for AgentDock's.

In: an environment's description and a starter for each server. Out: an ASGI app. Invariants: the token is checked in
constant time before the body is read. Each episode has an unguessable address, and exclusive instances of stateful
servers. A dying server loses only the episodes using it, and no episode silently continues with a new instance. Neither
the caller's token nor its Origin reaches a server.
"""

from ajet_environments.front.app import Front, build_front
from ajet_environments.front.episodes import EnvironmentFullError, EpisodeLostError, FrontEpisodes

__all__ = ["FrontEpisodes", "Front", "EnvironmentFullError", "EpisodeLostError", "build_front"]
