"""Retries requests to models that write or embed, and prefers models that answered.

Invariant: only transient failures are retried, after a doubling wait or the wait that the server requests. A model that
recently failed ("resting") is tried last, and once.
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
    model_index: int,
    *,
    is_last: bool,
    count_request: Callable[[], None],
) -> T:
    """Request an answer from one model, with retries.

    Args:
        ask: sends one request with a timeout in seconds.
        model_index: index of the model.
        is_last: True if no other model follows. A model that hangs is then retried once.
        count_request: called before each request.

    Raises:
        NoAnswerError: all tries failed.
    """
    started, retry = time.monotonic(), 0
    retries = 0 if failover.is_resting(model_index) else AGAIN
    while True:
        count_request()
        try:
            return await ask(TIMEOUT_S)
        except NoAnswerError as problem:
            has_hung = time.monotonic() - started >= TIMEOUT_S and not (is_last and retry == 0)
            if not problem.is_retryable or retry >= retries or has_hung or failover.is_resting(model_index):
                raise
            await asyncio.sleep(max(problem.after, WAIT_S * 2.0**retry))
            if failover.is_resting(model_index):  # another prompt's failure has put the server to rest
                raise
            retry += 1


def run_on_tools_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the tools' event loop and return its result. An interrupted caller cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, tools_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
