"""Calls of a store for a client's request: in a thread, and not for as long as a run waits for its store.

Invariant: a request ends within `PATIENCE` seconds of a store that is out of reach, so that the threads stay free for
others. The client sends it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from loguru import logger

from ajet.gateway import Refused
from ajet.store import CANNOT_NOW
from ajet.store.outage import limited_patience

PATIENCE = 10.0
"""Seconds."""
P = ParamSpec("P")
T = TypeVar("T")


async def ask_store(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the store's method in a thread, and return its answer. Raises what it raises."""
    with limited_patience(PATIENCE):
        return await asyncio.to_thread(method, *args, **kwargs)


async def ask_store_or_refuse(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the store's method in a thread. Raises Refused while the store is out of reach."""
    try:
        return await ask_store(method, *args, **kwargs)
    except CANNOT_NOW as error:
        logger.warning("the store cannot be asked: {}", error)
        raise Refused(
            "The server's store cannot be asked now; ask again later.", status=503, code="store_down", retry_after=1
        ) from error
