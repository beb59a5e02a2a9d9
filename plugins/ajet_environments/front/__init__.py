"""The front: the HTTP server that serves all tool servers of an environment at one address.

It accepts MCP clients of both protocol generations, and AgentDock's clients. It takes an environment's description and
a function to start each server, and builds an ASGI app. Invariants: the token is compared in constant time before the
body is read. Each episode has an unguessable URL and exclusive instances of stateful servers. A dying server fails only
the episodes that use it, and no episode silently continues with a new instance. Neither the client's token nor its
Origin reaches a server.
"""

from ajet_environments.front.app import Front, build_front
from ajet_environments.front.episodes import EnvironmentFullError, EpisodeLostError, FrontEpisodes

__all__ = ["FrontEpisodes", "Front", "EnvironmentFullError", "EpisodeLostError", "build_front"]
