"""One event loop for many attempts: ten thousand episodes cost ten thousand tasks, not threads.

Invariant: a task that blocks the loop past its episode's timeout costs the episodes on that loop their time, and no
later one: the next attempt gets a new loop. The old one is closed once the last of its attempts has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from loguru import logger

from ajet.rollout.attempt import Attempt, is_plain, perform
from ajet.rollout.isolation.thread import (
    DaemonThreads,
    ThreadIsolation,
    find_user_frame,
    format_position,
    locate_code,
)
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

T = TypeVar("T")
BLOCKED_S = 1.0
"""Seconds after which a task that keeps the loop is logged."""
LOOK_S = 0.25
"""Seconds between two looks of the watchdog."""


class LoopIsolation:
    """Runs attempts as tasks of one loop; a plain `execute` gets a thread of its own."""

    shared, apart = True, False

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> LoopIsolation:
        """Return the isolation; it is made for code that awaits."""
        return cls()

    def __init__(self) -> None:
        import openai.resources.chat.completions  # noqa: F401 - it takes seconds, in which the loop would stand still

        self._lock = threading.Lock()
        self._loops = [_open_loop()]
        self._running: dict[Attempt, tuple[Future[WorkflowOutput], UserLoop]] = {}
        self._threads = ThreadIsolation()
        self._live: dict[Attempt, asyncio.Task[Any]] = {}
        self._stopped: WeakSet[Attempt] = WeakSet()
        """Weak: nothing removes an attempt that is stopped while it ends."""

    @property
    def abandoned(self) -> int:
        """The number of tasks and threads that go on although their episode was stopped."""
        with self._lock:
            return sum(attempt in self._stopped for attempt in self._live) + self._threads.abandoned

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin the attempt."""
        if is_plain(attempt):
            return self._threads.start(attempt)
        with self._lock:
            loop = self._loops[-1]
            future = loop.submit(self._run(attempt))
            self._running[attempt] = (future, loop)
        future.add_done_callback(lambda _: self._note_end(attempt))
        return future

    def stands(self, attempt: Attempt) -> str:
        """Return the line of user code that the attempt is at; see Isolation."""
        with self._lock:
            task, found = self._live.get(attempt), self._running.get(attempt)
        return found[1].stands(task) if task is not None and found is not None else self._threads.stands(attempt)

    def stop(self, attempt: Attempt) -> None:
        """Cancel the task; the next attempts get a new loop if this one is blocked."""
        self._threads.stop(attempt)
        with self._lock:
            found = self._running.get(attempt)
            if found is None:
                return
            future, loop = found
            self._stopped.add(attempt)
            if loop.blocked and loop is self._loops[-1]:
                self._loops.append(_open_loop())
        future.cancel()

    def close(self) -> None:
        """Cancel all."""
        self._threads.close()
        with self._lock:
            loops = list(self._loops)
        for loop in loops:
            loop.close()

    def _note_end(self, attempt: Attempt) -> None:
        """Forget an attempt whose future is done, and close the old loops on which nothing runs."""
        with self._lock:
            self._running.pop(attempt, None)
            unused = [loop for loop in self._loops[:-1] if not self._has_attempts(loop)]
            for loop in unused:
                self._loops.remove(loop)
        for loop in unused:
            loop.close()

    def _has_attempts(self, loop: UserLoop) -> bool:
        return any(each is loop for _, each in self._running.values()) or any(map(loop.has, self._live.values()))

    async def _run(self, attempt: Attempt) -> WorkflowOutput:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._live[attempt] = task
        try:
            return await perform(attempt)
        finally:
            with self._lock:
                self._live.pop(attempt, None)
                self._stopped.discard(attempt)
            if attempt not in self._running:  # its future was done before
                self._note_end(attempt)


def _open_loop() -> UserLoop:
    return UserLoop("ajet-workflows", "execute")


class UserLoop:
    """An event loop in a daemon thread for user code, with a watchdog that names what blocks it.

    A task that keeps the loop for over a second is logged with the file and line that it is at; a loop that is merely
    busy with many tasks is not. Coroutines are submitted from any thread.
    """

    def __init__(self, name: str, what: str) -> None:
        """
        Args:
            name: Name of the thread.
            what: What runs here, for the log: "execute", "a judge".
        """
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonThreads())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closing = threading.Event()
        self._running_long: tuple[asyncio.Task[Any], float] | None = None
        self._thread.start()
        threading.Thread(target=self._watch, name=f"{name}-watchdog", daemon=True).start()

    @property
    def blocked(self) -> bool:
        """True while one task has kept the loop longer than a task should."""
        running = self._running_long
        return running is not None and time.monotonic() - running[1] >= BLOCKED_S

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run the coroutine on this loop. Cancelling the future cancels its task."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def has(self, task: asyncio.Task[Any]) -> bool:
        """True if it is a task of this loop."""
        return task.get_loop() is self._loop

    def stands(self, task: asyncio.Task[Any]) -> str:
        """Return the line of user code that one of its tasks is at; the running task is where the thread is."""
        is_running = asyncio.current_task(self._loop) is task
        return locate_code(self._thread.ident if is_running else None, task)

    def close(self) -> None:
        """Cancel all tasks and end the loop and its thread, unless it is blocked. Idempotent; does not wait."""
        if not self._closing.is_set():
            self._closing.set()
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._cancel_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing.is_set():
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised by a task that user code made
                self._loop.run_forever()
        self._loop.close()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_later(0.1, self._loop.stop)

    def _watch(self) -> None:
        """Find a task that blocks: one that is seen at each look, while the loop runs no callback in between."""
        sent = received = 0
        logged: asyncio.Task[Any] | None = None

        def beat() -> None:
            nonlocal received
            received = sent

        while not self._closing.wait(LOOK_S):
            running = asyncio.current_task(self._loop)
            if received == sent:
                self._running_long = None
                sent += 1
                with contextlib.suppress(RuntimeError):  # it has just ended
                    self._loop.call_soon_threadsafe(beat)
            elif running is None:
                self._running_long = None
            elif self._running_long is None or self._running_long[0] is not running:
                self._running_long = (running, time.monotonic())
            elif self.blocked and logged is not running:
                logged = running
                self._log_blocking_line()

    def _log_blocking_line(self) -> None:
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return
        own = find_user_frame(frame) or frame
        inner = f" (in {format_position(frame)})" if own is not frame else ""
        logger.warning(
            "{} blocks the shared loop for over a second at {}{}: all other episodes wait; "
            "await instead, or set rollout.isolation=thread",
            self._what,
            format_position(own),
            inner,
        )
