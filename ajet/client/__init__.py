"""A client of `ajet serve`: episodes for an agent on any machine; it needs httpx and nothing else.

In: the server's address and its admin key. Out: episodes with an address and a key for the agent, and what the server
made of how they went. Invariant: this room imports no other of ajet's; what the server acknowledged is asked for once,
what it may not have heard is said again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.client.client import Client
    from ajet.client.episode import Episode
    from ajet.client.refusals import EpisodeLost, Refused, Unreachable

__all__ = ["Client", "Episode", "EpisodeLost", "Refused", "Unreachable"]
_HOMES = {
    "Client": "client",
    "Episode": "episode",
    "EpisodeLost": "refusals",
    "Refused": "refusals",
    "Unreachable": "refusals",
}
"""The module of each name, which is loaded when it is first used: a run needs `ajet.client.proxies` alone."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
