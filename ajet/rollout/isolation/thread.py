"""One thread and event loop an episode: the default, for code of any kind.

Invariant: an attempt's loop and its helper threads are its own and are daemons; a hung one is cancelled, then
abandoned and counted, and never keeps another episode, or the end of the program, waiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.rollout.attempt import Attempt, is_plain, perform, perform_plain
from ajet.rollout.isolation.frames import stands
from ajet.rollout.own_loop import tidy
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

T = TypeVar("T")


class DaemonThreads(ThreadPoolExecutor):
    """For `asyncio.to_thread` in user code: a daemon thread a call, so that a hung one cannot hold up the exit."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run it in a new thread."""
        future: Future[T] = Future()
        context = copy_context()  # whose episode it is: see ajet.workflow.ambient

        def run() -> None:
            if future.set_running_or_notify_cancel():
                settle(future, context.run, fn, *args, **kwargs)

        threading.Thread(target=run, name="ajet-helper", daemon=True).start()
        return future


def settle(future: Future[T], call: Callable[..., T], /, *args: Any, **kwargs: Any) -> None:
    """Put what a call returns or raises, whatever it is, into a future."""
    try:
        outcome = call(*args, **kwargs)
    except BaseException as problem:  # noqa: BLE001 - the border where user code runs
        future.set_exception(problem)
    else:
        future.set_result(outcome)


@dataclass(slots=True, eq=False)
class _Running:
    cancel: Callable[[], Any] | None = None
    """None while the thread has not come to its task, and for plain functions, which hear nothing."""
    stopped: bool = False
    thread: int | None = None
    """Its ident."""
    task: asyncio.Task[Any] | None = None


class ThreadIsolation:
    """See the module."""

    shared = apart = False

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> ThreadIsolation:
        """Open it for any code."""
        return cls()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Attempt, _Running] = {}

    @property
    def abandoned(self) -> int:
        """Threads that go on although their episode was stopped."""
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
        """See Isolation."""
        with self._lock:
            running = self._running.get(attempt)
        return "" if running is None else stands(running.thread, running.task)

    def stop(self, attempt: Attempt) -> None:
        """Cancel its task; code that does not wait for anything cannot hear that."""
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
