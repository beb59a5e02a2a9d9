"""The Python runtime under a rollout: event loops in threads, helper threads, code positions, garbage collection.

Invariants: an event loop is closed by its own thread, together with the loop's descriptors. All threads are daemons:
hanging user code delays neither another episode nor the exit of the program. A position is in the user's files, never
in a library where the user's code waits. Garbage collections are rarer during a rollout, and never off.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import FrameType
from typing import Any, TypeVar

from loguru import logger

from ajet.config.plugins import list_package_roots
from ajet.environment.loop import in_thread

T = TypeVar("T")
CANCEL_TIMEOUT = 1.0
"""Seconds for cancelled tasks to end."""
BLOCKED_S = 1.0
"""Seconds after which a task blocking the loop is logged."""
WATCH_INTERVAL_S = 0.25
"""Seconds between two checks of the watchdog."""
GC_THRESHOLDS = (100_000, 50, 100)
"""Thresholds of `gc` during a rollout.

Ten thousand waiting episodes hold millions of objects, all in use. With Python's own thresholds almost half of the CPU
time of such a rollout goes into scanning them (benchmarks/bench_rollout.py).
"""
_LIBRARY_PATHS = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    *map(str, list_package_roots()),
    "<",
)
"""Path prefixes of code that is not the user's."""
_gc_lock = threading.Lock()
_gc_users = 0
_gc_original = gc.get_threshold()


class LoopThread:
    """Runs `loop` in a thread from creation until `stop`."""

    def __init__(self, name: str) -> None:
        """Start the loop in a thread with this name."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self.thread.start()

    def stop(self, timeout: float) -> None:
        """End the loop and wait up to `timeout` seconds for the thread. Idempotent.

        If code blocks the loop for longer, the thread ends only with this process.
        """
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(timeout)

    def _run_loop(self) -> None:
        """Run the loop until `stop`, then cancel its remaining tasks and close it."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(cancel_remaining(self.loop))
        finally:
            self.loop.close()


async def cancel_remaining(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of the loop, which must be running, and wait up to CANCEL_TIMEOUT."""
    remaining = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    if remaining:
        await asyncio.wait(remaining, timeout=CANCEL_TIMEOUT)
    await loop.shutdown_asyncgens()


async def wait_first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of the futures is done, or until the timeout."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


class DaemonThreads(ThreadPoolExecutor):
    """The executor of `asyncio.to_thread` in user code: one daemon thread per call.

    A daemon thread never delays the exit of the program.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the function in a new thread."""
        future: Future[T] = Future()
        context = copy_context()  # the context names the episode (ajet.workflow.ambient)

        def run() -> None:
            if future.set_running_or_notify_cancel():
                call_into_future(future, context.run, fn, *args, **kwargs)

        threading.Thread(target=run, name="ajet-helper", daemon=True).start()
        return future


def call_into_future(future: Future[T], call: Callable[..., T], /, *args: Any, **kwargs: Any) -> None:
    """Call the function and put the result or the exception into the future."""
    try:
        outcome = call(*args, **kwargs)
    except BaseException as problem:  # noqa: BLE001 - the border where user code runs
        future.set_exception(problem)
    else:
        future.set_result(outcome)


class UserLoop:
    """Runs an event loop for user code in a daemon thread, with a watchdog logging blocking tasks.

    A task that blocks the loop for over a second is logged with file and line. A loop busy with many short tasks is not
    logged. Coroutines may be submitted from any thread.
    """

    def __init__(self, name: str, what: str) -> None:
        """Start the thread and the watchdog.

        Args:
            name: Name of the thread.
            what: Kind of code run on the loop, for the log: "execute", "a judge".
        """
        self._description = what
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonThreads())
        self.thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._is_closing = threading.Event()
        self._running_long: tuple[asyncio.Task[Any], float] | None = None
        self.thread.start()
        threading.Thread(target=self._watch_tasks, name=f"{name}-watchdog", daemon=True).start()

    @property
    def is_blocked(self) -> bool:
        """True while one task has blocked the loop for BLOCKED_S or longer."""
        running = self._running_long
        return running is not None and time.monotonic() - running[1] >= BLOCKED_S

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the coroutine on this loop. Cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def owns_task(self, task: asyncio.Task[Any]) -> bool:
        """True if the task runs on this loop."""
        return task.get_loop() is self.loop

    def locate_task(self, task: asyncio.Task[Any]) -> str:
        """Return the current line of user code of a task of this loop, as file:line.

        For the running task, the frame of the loop's thread is read.
        """
        is_running = asyncio.current_task(self.loop) is task
        return locate_code(self.thread.ident if is_running else None, task)

    def close(self) -> None:
        """Cancel all tasks and end the loop and thread, unless the loop is blocked. Idempotent, does not wait."""
        if not self._is_closing.is_set():
            self._is_closing.set()
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self.loop.call_soon_threadsafe(self._cancel_all)

    def _run_loop(self) -> None:
        """Run the loop until `close`, also after user code has tried to end the program."""
        asyncio.set_event_loop(self.loop)
        while not self._is_closing.is_set():
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised by a task of user code
                self.loop.run_forever()
        self.loop.close()

    def _cancel_all(self) -> None:
        """Cancel all tasks and stop the loop soon after."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        # The cancelled tasks get a moment for their cleanup.
        self.loop.call_later(0.1, self.loop.stop)

    def _watch_tasks(self) -> None:
        """Find a blocking task: the same task at each check, while the loop runs no callback in between."""
        sent = received = 0
        logged: asyncio.Task[Any] | None = None

        # A blocked loop does not run this callback, so `received` falls behind `sent`.
        def beat() -> None:
            nonlocal received
            received = sent

        while not self._is_closing.wait(WATCH_INTERVAL_S):
            running = asyncio.current_task(self.loop)
            if received == sent:
                self._running_long = None
                sent += 1
                with contextlib.suppress(RuntimeError):  # the loop has just ended
                    self.loop.call_soon_threadsafe(beat)
            elif running is None:
                self._running_long = None
            elif self._running_long is None or self._running_long[0] is not running:
                self._running_long = (running, time.monotonic())
            elif self.is_blocked and logged is not running:
                logged = running
                self._log_blocking_line()

    def _log_blocking_line(self) -> None:
        """Log the user's line that blocks the loop, and the library line below it."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        if frame is None:
            return
        user_frame = _find_user_frame(frame) or frame
        inner = f" (in {_format_position(frame)})" if user_frame is not frame else ""
        logger.warning(
            "{} blocks the event loop that all episodes share for over a second at {}{}: all other episodes "
            "wait. Use `await` there, or set rollout.isolation: thread",
            self._description,
            _format_position(user_frame),
            inner,
        )


def locate_code(thread: int | None, task: asyncio.Task[Any] | None) -> str:
    """Return the current line of user code, or "".

    Args:
        thread: The ident of the thread to search.
        task: A waiting task, searched if the thread runs no user code.
    """
    frame = sys._current_frames().get(thread or 0)
    user_frame = _find_user_frame(frame) if frame is not None else None
    if user_frame is None and task is not None:
        for waiting in _walk_awaited_frames(task.get_coro()):
            user_frame = _find_user_frame(waiting) or _find_frame_in_thread(waiting) or user_frame
    return _format_position(user_frame) if user_frame is not None else ""


def _find_user_frame(frame: FrameType) -> FrameType | None:
    """Return the innermost frame outside the standard library, installed packages and ajet."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(_LIBRARY_PATHS):
        caller = caller.f_back
    return caller


def _format_position(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _find_frame_in_thread(waiting: FrameType) -> FrameType | None:
    """Return the user's frame in the thread awaited by `in_thread`, if `waiting` is a frame of `in_thread`."""
    if waiting.f_code is not in_thread.__code__:
        return None
    thread = waiting.f_locals.get("thread")
    frame = sys._current_frames().get(getattr(thread, "ident", None) or 0)
    return _find_user_frame(frame) if frame is not None else None


def _walk_awaited_frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of all awaited objects, the outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


@contextlib.contextmanager
def reduce_collections() -> Iterator[None]:
    """Collect reference cycles rarely within the block, and within overlapping blocks."""
    global _gc_users, _gc_original
    with _gc_lock:
        if not _gc_users:
            _gc_original = gc.get_threshold()
            if gc.isenabled() and _gc_original[0]:
                gc.set_threshold(*GC_THRESHOLDS)
        _gc_users += 1
    try:
        yield
    finally:
        with _gc_lock:
            _gc_users -= 1
            if not _gc_users:
                gc.set_threshold(*_gc_original)


@contextlib.contextmanager
def freeze_start() -> Iterator[None]:
    """Exclude all existing objects from garbage collections within the block.

    Modules and parts are half a million objects. A full collection would scan them for 0.3 s, and no client gets a
    reply in the meantime.
    """
    if gc.get_freeze_count():  # a backbone has frozen the objects, and unfreezes them
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
