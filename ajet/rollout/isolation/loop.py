"""One event loop for many attempts: ten thousand episodes cost ten thousand tasks, not threads.

Invariant: a task that blocks the loop past the episode's timeout delays the episodes on the same loop and no later
episode. The next attempt gets a new loop. The old loop is closed after the end of its last attempt.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ajet.rollout.attempt import AttemptBase, is_plain_attempt, perform_attempt
from ajet.rollout.isolation.thread import ThreadIsolation
from ajet.rollout.runtime import UserLoop
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


class LoopIsolation:
    """Runs attempts as tasks of one loop. A plain `execute` gets a separate thread."""

    shares_loop, is_remote = True, False

    @classmethod
    def create(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> LoopIsolation:
        """Return the isolation, intended for asynchronous code."""
        return cls()

    def __init__(self) -> None:
        import openai.resources.chat.completions  # noqa: F401 - the import takes seconds and would block the loop

        self._lock = threading.Lock()
        self.loops = [_open_loop()]
        self._running: dict[AttemptBase, tuple[Future[WorkflowOutput], UserLoop]] = {}
        self._threads = ThreadIsolation()
        self._live: dict[AttemptBase, asyncio.Task[Any]] = {}
        self._stopped: WeakSet[AttemptBase] = WeakSet()
        """Stopped attempts whose tasks may still run. References are weak: an attempt stopped during its end is never
        removed.
        """

    @property
    def abandoned_count(self) -> int:
        """The number of tasks and threads still running after the stop of their episode."""
        with self._lock:
            return sum(attempt in self._stopped for attempt in self._live) + self._threads.abandoned_count

    def start(self, attempt: AttemptBase) -> Future[WorkflowOutput]:
        """Begin the attempt on the newest loop."""
        if is_plain_attempt(attempt):
            return self._threads.start(attempt)
        with self._lock:
            loop = self.loops[-1]
            future = loop.submit(self._run_attempt(attempt))
            self._running[attempt] = (future, loop)
        future.add_done_callback(lambda _: self._note_end(attempt))
        return future

    def locate(self, attempt: AttemptBase) -> str:
        """Return the attempt's current line of user code, as `Isolation.locate` does."""
        with self._lock:
            task, found = self._live.get(attempt), self._running.get(attempt)
        return found[1].locate_task(task) if task is not None and found is not None else self._threads.locate(attempt)

    def stop(self, attempt: AttemptBase) -> None:
        """Cancel the task. The next attempts get a new loop if this loop is blocked."""
        self._threads.stop(attempt)
        with self._lock:
            found = self._running.get(attempt)
            if found is None:
                return
            future, loop = found
            self._stopped.add(attempt)
            if loop.is_blocked and loop is self.loops[-1]:
                self.loops.append(_open_loop())
        future.cancel()

    def close(self) -> None:
        """Cancel all running attempts and end the loops."""
        self._threads.close()
        with self._lock:
            loops = list(self.loops)
        for loop in loops:
            loop.close()

    def _note_end(self, attempt: AttemptBase) -> None:
        """Remove an attempt with a finished future, and close the old loops without attempts."""
        with self._lock:
            self._running.pop(attempt, None)
            unused = [loop for loop in self.loops[:-1] if not self._has_attempts(loop)]
            for loop in unused:
                self.loops.remove(loop)
        for loop in unused:
            loop.close()

    def _has_attempts(self, loop: UserLoop) -> bool:
        return any(each is loop for _, each in self._running.values()) or any(map(loop.owns_task, self._live.values()))

    async def _run_attempt(self, attempt: AttemptBase) -> WorkflowOutput:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._live[attempt] = task
        try:
            return await perform_attempt(attempt)
        finally:
            with self._lock:
                self._live.pop(attempt, None)
                self._stopped.discard(attempt)
            if attempt not in self._running:  # the future was done before
                self._note_end(attempt)


def _open_loop() -> UserLoop:
    return UserLoop("ajet-workflows", "execute")
