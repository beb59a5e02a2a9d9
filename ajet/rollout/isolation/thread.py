"""A thread and an event loop for each attempt: the default isolation, for code of any kind.

Also `locate_code`, which names the line of user code that a thread or a waiting task is at. Invariants: an attempt's
loop and its helper threads are its own and are daemons; one that hangs is cancelled, then abandoned and counted, and
never keeps another episode or the end of the program waiting. A position is in the user's files, never in the library
that their code waits in.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.config.plugins import list_package_roots
from ajet.environment.loop import in_thread
from ajet.rollout.attempt import Attempt, is_plain, perform, perform_plain
from ajet.rollout.own_loop import tidy
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

T = TypeVar("T")
_OTHER_CODE = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    *map(str, list_package_roots()),
    "<",
)
"""Beginnings of paths of code that is not the user's."""


class DaemonThreads(ThreadPoolExecutor):
    """The executor of `asyncio.to_thread` in user code: a daemon thread a call, so that none holds up the exit."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the function in a new thread."""
        future: Future[T] = Future()
        context = copy_context()  # it names the episode: see ajet.workflow.ambient

        def run() -> None:
            if future.set_running_or_notify_cancel():
                settle(future, context.run, fn, *args, **kwargs)

        threading.Thread(target=run, name="ajet-helper", daemon=True).start()
        return future


def settle(future: Future[T], call: Callable[..., T], /, *args: Any, **kwargs: Any) -> None:
    """Call the function and put its result or its exception into the future."""
    try:
        outcome = call(*args, **kwargs)
    except BaseException as problem:  # noqa: BLE001 - the border where user code runs
        future.set_exception(problem)
    else:
        future.set_result(outcome)


@dataclass(slots=True, eq=False)
class _Running:
    cancel: Callable[[], Any] | None = None
    """None until the thread has a task, and for plain functions, which cannot be cancelled."""
    stopped: bool = False
    thread: int | None = None
    """Its ident."""
    task: asyncio.Task[Any] | None = None


class ThreadIsolation:
    """Runs each attempt in a thread of its own."""

    shared = apart = False

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> ThreadIsolation:
        """Return an isolation for code of any kind."""
        return cls()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Attempt, _Running] = {}

    @property
    def abandoned(self) -> int:
        """The number of threads that go on although their episode was stopped."""
        with self._lock:
            return sum(running.stopped for running in self._running.values())

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin in a new thread."""
        future: Future[WorkflowOutput] = Future()
        with self._lock:
            running = self._running[attempt] = _Running()
        name = f"ajet-{attempt.task.task_tag}"
        threading.Thread(target=self._run, args=(attempt, running, future), name=name, daemon=True).start()
        return future

    def stands(self, attempt: Attempt) -> str:
        """Return the line of user code that the attempt is at; see Isolation."""
        with self._lock:
            running = self._running.get(attempt)
        return "" if running is None else locate_code(running.thread, running.task)

    def stop(self, attempt: Attempt) -> None:
        """Cancel its task; code that never waits does not notice."""
        with self._lock:
            running = self._running.get(attempt)
            if running is not None:
                running.stopped = True
                if running.cancel is not None:
                    running.cancel()

    def close(self) -> None:
        """Cancel all."""
        with self._lock:
            attempts = list(self._running)
        for attempt in attempts:
            self.stop(attempt)

    def _run(self, attempt: Attempt, running: _Running, future: Future[WorkflowOutput]) -> None:
        running.thread = threading.get_ident()
        try:
            if is_plain(attempt):
                settle(future, perform_plain, attempt)
            else:
                self._run_loop(attempt, running, future)
        finally:
            with self._lock:
                del self._running[attempt]

    def _run_loop(self, attempt: Attempt, running: _Running, future: Future[WorkflowOutput]) -> None:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(DaemonThreads())
        task = loop.create_task(perform(attempt))
        running.task = task
        with self._lock:
            running.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if running.stopped:
                task.cancel()
        try:
            settle(future, loop.run_until_complete, task)
            loop.run_until_complete(tidy(loop))
        finally:
            with self._lock:
                running.cancel = None
            loop.close()


def find_user_frame(frame: FrameType) -> FrameType | None:
    """Return the innermost frame that is neither the standard library's, an installed package's, nor ajet's."""
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename.startswith(_OTHER_CODE):
        found = found.f_back
    return found


def format_position(frame: FrameType) -> str:
    """Return file:line and the name of the function."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def locate_code(thread: int | None, task: asyncio.Task[Any] | None) -> str:
    """Return the line of user code that a thread, by its ident, or else a waiting task is at; "" if there is none."""
    frame = sys._current_frames().get(thread or 0)
    found = find_user_frame(frame) if frame is not None else None
    if found is None and task is not None:
        for waiting in _walk_awaited_frames(task.get_coro()):
            found = find_user_frame(waiting) or _find_frame_in_thread(waiting) or found
    return format_position(found) if found is not None else ""


def _find_frame_in_thread(waiting: FrameType) -> FrameType | None:
    """Return the user's frame in the thread that `in_thread` waits for, if `waiting` is a frame of `in_thread`."""
    if waiting.f_code is not in_thread.__code__:
        return None
    thread = waiting.f_locals.get("thread")
    frame = sys._current_frames().get(getattr(thread, "ident", None) or 0)
    return find_user_frame(frame) if frame is not None else None


def _walk_awaited_frames(coroutine: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of what it awaits, the outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
