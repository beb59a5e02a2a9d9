"""A thread and an event loop for each attempt: the default isolation, for code of any kind.

Invariant: attempts share neither a loop nor helper threads. A hanging attempt is cancelled, then abandoned and counted,
and no other episode waits for the attempt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.rollout.attempt import AttemptBase, is_plain_attempt, perform_attempt, perform_plain_attempt
from ajet.rollout.runtime import DaemonThreads, call_into_future, cancel_remaining, locate_code
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


@dataclass(slots=True, eq=False)
class _RunningAttempt:
    """The state of an attempt's thread, shared with `stop`."""

    cancel: Callable[[], Any] | None = None
    """None before the thread has a task, and for plain functions, where cancelling is impossible."""
    stopped: bool = False
    thread: int | None = None
    """The ident of the attempt's thread."""
    task: asyncio.Task[Any] | None = None


class ThreadIsolation:
    """Runs each attempt in a separate thread."""

    shares_loop = is_remote = False

    @classmethod
    def create(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> ThreadIsolation:
        """Return an isolation for code of any kind."""
        return cls()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running_attempts: dict[AttemptBase, _RunningAttempt] = {}

    @property
    def abandoned_count(self) -> int:
        """The number of threads still running after the stop of their episode."""
        with self._lock:
            return sum(running.stopped for running in self._running_attempts.values())

    def start(self, attempt: AttemptBase) -> Future[WorkflowOutput]:
        """Begin the attempt in a new thread."""
        future: Future[WorkflowOutput] = Future()
        with self._lock:
            running = self._running_attempts[attempt] = _RunningAttempt()
        name = f"ajet-{attempt.task.task_tag}"
        threading.Thread(target=self._run_attempt, args=(attempt, running, future), name=name, daemon=True).start()
        return future

    def locate(self, attempt: AttemptBase) -> str:
        """Return the attempt's current line of user code, as `Isolation.locate` does."""
        with self._lock:
            running = self._running_attempts.get(attempt)
        return "" if running is None else locate_code(running.thread, running.task)

    def stop(self, attempt: AttemptBase) -> None:
        """Cancel the attempt's task. Code without an `await` does not notice."""
        with self._lock:
            running = self._running_attempts.get(attempt)
            if running is not None:
                running.stopped = True
                if running.cancel is not None:
                    running.cancel()

    def close(self) -> None:
        """Cancel all running attempts. Does not wait."""
        with self._lock:
            attempts = list(self._running_attempts)
        for attempt in attempts:
            self.stop(attempt)

    def _run_attempt(self, attempt: AttemptBase, running: _RunningAttempt, future: Future[WorkflowOutput]) -> None:
        """Run the attempt in this thread and put its output or exception into the future."""
        running.thread = threading.get_ident()
        try:
            if is_plain_attempt(attempt):
                call_into_future(future, perform_plain_attempt, attempt)
            else:
                self._run_loop(attempt, running, future)
        finally:
            with self._lock:
                del self._running_attempts[attempt]

    def _run_loop(self, attempt: AttemptBase, running: _RunningAttempt, future: Future[WorkflowOutput]) -> None:
        """Run an async `execute` on a new event loop in this thread, then cancel the loop's remaining tasks."""
        loop = asyncio.new_event_loop()
        loop.set_default_executor(DaemonThreads())
        task = loop.create_task(perform_attempt(attempt))
        running.task = task
        with self._lock:
            running.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            # `stop` may have been called before `cancel` was set.
            if running.stopped:
                task.cancel()
        try:
            call_into_future(future, loop.run_until_complete, task)
            loop.run_until_complete(cancel_remaining(loop))
        finally:
            with self._lock:
                running.cancel = None
            loop.close()
