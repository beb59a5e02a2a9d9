"""One shared loop for workflows known to be async: ten thousand episodes cost ten thousand tasks, not threads.

Invariant: a task that blocks the loop past its episode's timeout costs the episodes beside it their time, and no
later one: the next attempt gets a new loop. One that was left so is closed once the last of its attempts has ended.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ajet.rollout.attempt import Attempt, is_plain, perform
from ajet.rollout.isolation.thread import ThreadIsolation
from ajet.rollout.isolation.user_loop import UserLoop
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


class LoopIsolation:
    """See the module."""

    shared, apart = True, False

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> LoopIsolation:
        """Open it for any code; it is made for code that awaits."""
        return cls()

    def __init__(self) -> None:
        import openai.resources.chat.completions  # noqa: F401 - takes seconds, which the shared loop would stand still

        self._lock = threading.Lock()
        self._loops = [self._new()]
        self._running: dict[Attempt, tuple[Future[WorkflowOutput], UserLoop]] = {}
        self._threads = ThreadIsolation()
        self._live: dict[Attempt, asyncio.Task[Any]] = {}
        self._stopped: WeakSet[Attempt] = WeakSet()
        """One that is stopped as it ends has nothing left that would forget it."""

    @staticmethod
    def _new() -> UserLoop:
        return UserLoop("ajet-workflows", "execute")

    @property
    def abandoned(self) -> int:
        """Tasks that go on although their episode was stopped."""
        with self._lock:
            return sum(attempt in self._stopped for attempt in self._live) + self._threads.abandoned

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin as a task; a plain `execute` gets a thread of its own."""
        if is_plain(attempt):
            return self._threads.start(attempt)
        with self._lock:
            loop = self._loops[-1]
            future = loop.submit(self._noted(attempt))
            self._running[attempt] = (future, loop)
        future.add_done_callback(lambda _: self._over(attempt))
        return future

    def stands(self, attempt: Attempt) -> str:
        """See Isolation."""
        with self._lock:
            task, found = self._live.get(attempt), self._running.get(attempt)
        return found[1].stands(task) if task is not None and found is not None else self._threads.stands(attempt)

    def stop(self, attempt: Attempt) -> None:
        """Cancel the task; leave the loop if it hears nothing."""
        self._threads.stop(attempt)
        with self._lock:
            found = self._running.get(attempt)
            if found is None:
                return
            future, loop = found
            self._stopped.add(attempt)
            if loop.blocked and loop is self._loops[-1]:
                self._loops.append(self._new())
        future.cancel()

    def close(self) -> None:
        """Cancel all."""
        self._threads.close()
        with self._lock:
            loops = list(self._loops)
        for loop in loops:
            loop.close()

    def _over(self, attempt: Attempt) -> None:
        """Its future is done. A loop that was left for another is closed once nothing runs there."""
        with self._lock:
            self._running.pop(attempt, None)
            left = [loop for loop in self._loops[:-1] if not self._uses(loop)]
            for loop in left:
                self._loops.remove(loop)
        for loop in left:
            loop.close()

    def _uses(self, loop: UserLoop) -> bool:
        return any(each is loop for _, each in self._running.values()) or any(map(loop.has, self._live.values()))

    async def _noted(self, attempt: Attempt) -> WorkflowOutput:
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
                self._over(attempt)
