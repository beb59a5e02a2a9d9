"""The thread and event loop of tool connections, shared by all attempts.

Invariants: each process has a single loop, started on first use (a fork gets a new loop with empty tables). No user
code runs on the loop. Cancelling a caller cancels only its work on the loop, except work run to the end. Work cancelled
on the loop itself raises `CallFailedError`, never CancelledError. Possibly hanging foreign code runs in a daemon thread
per call (`in_thread`), outside any pool, so endless calls block neither other calls nor the exit.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from contextlib import suppress
from typing import Any, TypeVar

from ajet.schema.errors import EnvironmentFailure
from ajet.schema.tool_use import ToolError

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call the function in a daemon thread of its own, and return its result or raise its exception."""
    loop = asyncio.get_running_loop()
    result_future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        """Call the function, and pass the outcome to the awaiting loop."""
        try:
            outcome, error = function(*arguments), None
        except BaseException as raised:  # noqa: BLE001 - the awaiting task raises it
            outcome, error = None, raised
        with suppress(RuntimeError):  # that loop has ended
            loop.call_soon_threadsafe(_settle_future, result_future, outcome, error)

    thread = threading.Thread(target=work, name="ajet-call", daemon=True)
    thread.start()  # ajet.rollout.runtime reads this variable to locate the running code
    return await result_future


def _settle_future(done: asyncio.Future[Any], outcome: Any, problem: BaseException | None) -> None:
    """Set a call's result or exception on its future, unless the future is cancelled."""
    if done.done():
        return
    if problem is None:
        done.set_result(outcome)
    else:
        # SystemExit and its like would end the loop, StopIteration cannot be set
        is_unsettable = not isinstance(problem, Exception) or isinstance(problem, StopIteration)
        done.set_exception(RuntimeError(f"the connection ended with {problem!r}") if is_unsettable else problem)


Table = TypeVar("Table", dict[Any, Any], list[Any])
ENDS_S = 5.0
"""Seconds for closing connections at exit."""
_of_parents: list[Any] = []
"""Tables of a fork's parent. Releasing the tables would close the parent's connections."""
LONGEST_MESSAGE = 4_000
"""Limit on the characters of a failure's message, because a server's text may be long."""


class CallFailedError(EnvironmentFailure):
    """A call to a server that gave no result.

    `kind` is the error class for the record. `delivered` is True if the server may have received the call, `lost` if
    the session has ended.
    """

    def __init__(self, message: str, kind: ToolError, *, delivered: bool = True, lost: bool = False) -> None:
        super().__init__(message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]} […]")
        self.kind = kind
        self.delivered = delivered
        self.lost = lost


def process_local(table: Table) -> Table:
    """Return `table`, registered to be emptied in a forked child.

    Its objects belong to the parent's event loop, so the child must not use them.
    """

    def begin_anew() -> None:
        """Empty the table in the child, but keep its objects alive: deleting them would close the parent's."""
        _of_parents.append(table.copy())
        table.clear()

    os.register_at_fork(after_in_child=begin_anew)
    return table


_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = process_local({})
_at_end: list[Callable[[], Coroutine[Any, Any, None]]] = process_local([])


def tools_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process's tool connections; the first call starts it in a daemon thread."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="ajet-tools", daemon=True).start()
            atexit.register(_close_at_exit, loop)
        return loop


def close_at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Register a coroutine function that is awaited on the tools' loop when the process ends."""
    _at_end.append(close)


async def on_tools_loop(
    work: Coroutine[Any, Any, T],
    unclaimed: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    *,
    to_the_end: bool = False,
) -> T:
    """Run a coroutine on the event loop of this process's tool connections; return its result or raise its exception.

    The caller awaits on its own loop, in another thread or on the same loop.

    Args:
        unclaimed: Called with the result if the caller was cancelled meanwhile, for example to close a connection.
        to_the_end: True if a cancellation of the caller does not cancel the work.

    Raises:
        CallFailedError: the work was cancelled on the loop itself.
    """
    tools, own_loop = tools_loop(), asyncio.get_running_loop()
    if own_loop is tools:
        return await (asyncio.shield(tools.create_task(work)) if to_the_end else work)
    answer: asyncio.Future[T] = own_loop.create_future()
    is_cancelled = False
    task: asyncio.Task[None] | None = None

    def settle(result: Any, problem: BaseException | None) -> None:
        """Pass the outcome to the caller, on its loop; a result that nobody awaits goes to `unclaimed`."""
        if answer.done():
            if problem is None and unclaimed is not None:
                asyncio.run_coroutine_threadsafe(unclaimed(result), tools)
        elif problem is None:
            answer.set_result(result)
        else:
            answer.set_exception(problem)

    async def run() -> None:
        """Await the work on the tools' loop, and pass its outcome to the caller's loop."""
        result: Any = None
        problem: BaseException | None = None
        try:
            result = await work
        except asyncio.CancelledError:
            if is_cancelled:  # by the caller, who awaits nothing more
                return
            problem = CallFailedError(
                "the asyncio task of the server's connection was cancelled", "transport", lost=True
            )
        except BaseException as raised:  # noqa: BLE001 - the caller raises it
            problem = raised
        try:
            own_loop.call_soon_threadsafe(settle, result, problem)
        except RuntimeError:  # the caller's loop is closed, so no task waits
            if problem is None and unclaimed is not None:
                await unclaimed(result)

    def begin() -> None:
        """Start the work, on the tools' loop."""
        nonlocal task
        task = tools.create_task(run())

    def cancel() -> None:
        assert task is not None
        task.cancel()

    tools.call_soon_threadsafe(begin)
    try:
        return await answer
    except asyncio.CancelledError:
        if not to_the_end:
            is_cancelled = True
            tools.call_soon_threadsafe(cancel)
        # The result may have come at the same time as the cancellation.
        if unclaimed is not None and not answer.cancelled() and answer.exception() is None:
            asyncio.run_coroutine_threadsafe(unclaimed(answer.result()), tools)
        raise


def _close_at_exit(loop: asyncio.AbstractEventLoop) -> None:
    """Await all functions of `close_at_exit`, for at most ENDS_S seconds. A forked child closes nothing."""
    if _loops.get(os.getpid()) is not loop:
        return

    async def all_closed() -> None:
        for close in _at_end:
            await close()

    with suppress(futures.TimeoutError):  # the process ends even if closing takes too long
        asyncio.run_coroutine_threadsafe(all_closed(), loop).result(timeout=ENDS_S)
