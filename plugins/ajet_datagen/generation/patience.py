"""Retry requests to models that write or embed.

Invariant: only transient failures are retried, after a doubling wait or the wait named by the server; a resting model
(`failover`) is tried once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ajet.environment.chat_model import NoAnswerError
from ajet.environment.loop import tools_loop
from ajet_datagen.generation.failover import ModelFailover

T = TypeVar("T")
AGAIN = 3
"""Maximum retries of one model."""
WAIT_S = 1.0
"""Wait before the first retry; doubled before each further retry."""
TIMEOUT_S = 300.0


async def request_with_retries(
    ask: Callable[[float], Awaitable[T]],
    failover: ModelFailover,
    place: int,
    *,
    last: bool,
    counted: Callable[[], None],
) -> T:
    """Return the answer of model `place`, with retries. Raises NoAnswerError.

    A model that hangs is retried only if it is the `last` one, and once. `ask`: sends one request with a timeout in
    seconds; `counted` is called before each request.
    """
    began, number = time.monotonic(), 0
    retries = 0 if failover.is_resting(place) else AGAIN
    while True:
        counted()
        try:
            return await ask(TIMEOUT_S)
        except NoAnswerError as problem:
            hung = time.monotonic() - began >= TIMEOUT_S and not (last and number == 0)
            if not problem.is_retryable or number >= retries or hung or failover.is_resting(place):
                raise
            await asyncio.sleep(max(problem.after, WAIT_S * 2.0**number))
            if failover.is_resting(place):  # another prompt's failure has put the server to rest
                raise
            number += 1


def run_on_tools_loop(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine run on the tools' loop; an interrupted caller cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, tools_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
