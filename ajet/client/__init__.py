"""Client of `ajet serve`: episodes for an agent on any machine, with httpx as the only dependency.

Input: the server's address and admin key. Output: episodes with address and key for the agent, and their results.
Invariant: no other package of ajet is imported. An acknowledged request is sent once; a possibly lost request is
repeated.
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
"""Module of each name, loaded on first use: a run needs only `ajet.client.proxies`."""


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
