"""How long a server is asked that does not answer: of models that write as of those that embed.

Invariant: only what could go well another time is asked again, after a wait that doubles, or the one that the server
names; one that rests (`failover`) is asked once.
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
"""Further requests to a model that does not answer."""
WAIT_S = 1.0
"""Before the first of them; doubled before each further one."""
TIMEOUT_S = 300.0


async def request_with_retries(
    ask: Callable[[float], Awaitable[T]],
    failover: ModelFailover,
    place: int,
    *,
    last: bool,
    counted: Callable[[], None],
) -> T:
    """What a model answers, the one of `failover` at `place`, which is asked again where that can help; one that hangs
    only where it is the `last`, and once. `ask`: one request, within so many seconds; `counted` is called for each.
    Raises NoAnswerError."""
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
            if failover.is_resting(place):  # another prompt found out meanwhile
                raise
            number += 1


def run_on_tools_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of work on the tools' loop. A caller that is interrupted cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, tools_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
