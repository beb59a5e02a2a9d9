"""A thread for one call: code of others, which may hang, runs in it beside an event loop.

Invariant: threads are daemons and no pool's, so that calls which never end use up nothing but themselves and hold up no
exit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run the function in a thread of its own; returns or raises what it does."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            outcome, problem = function(*arguments), None
        except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits it
            outcome, problem = None, raised
        with suppress(RuntimeError):  # that loop has ended
            loop.call_soon_threadsafe(_settle, done, outcome, problem)

    thread = threading.Thread(target=work, name="ajet-call", daemon=True)
    thread.start()  # who asks where the code stands reads this variable (ajet.rollout.runtime)
    return await done


def _settle(done: asyncio.Future[Any], outcome: Any, problem: BaseException | None) -> None:
    if done.done():
        return
    if problem is None:
        done.set_result(outcome)
    else:
        # SystemExit and its like would end the loop, StopIteration cannot be set
        strange = not isinstance(problem, Exception) or isinstance(problem, StopIteration)
        done.set_exception(RuntimeError(f"it ended with {problem!r}") if strange else problem)
