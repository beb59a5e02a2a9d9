"""Calls of a store for a client's request: in a thread, and not for as long as a run waits for its store.

Invariant: a request ends within `PATIENCE` seconds of a store that is out of reach, so that the threads stay free for
others. The client sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ajet.store.outage import limited_patience

PATIENCE = 10.0
"""Seconds."""
P = ParamSpec("P")
T = TypeVar("T")


async def ask_store(method: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
    """Call the store's method in a thread. Raises what it raises."""
    with limited_patience(PATIENCE):
        return await asyncio.to_thread(method, *given, **more)
