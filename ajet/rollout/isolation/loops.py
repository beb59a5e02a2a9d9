"""Several processes with a loop of many agents each: where one loop's processor is the limit.

Invariants: an attempt is given to the process that plays the fewest; a process that is gone, or in which an attempt
that was stopped goes on, is given none, and the next attempt finds a new one in its place. Inside, attempts share a
loop as with `loop`, and clients reach the gateway over its loopback port as with `process`. Linux and macOS.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.record.processors import usable_cpus
from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import failed
from ajet.rollout.isolation.loops_handle import LoopsHandle
from ajet.rollout.isolation.messages import Home
from ajet.rollout.isolation.process import home_of
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


class LoopsIsolation:
    """See the module."""

    shared, apart = True, True

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> LoopsIsolation:
        """Raises ConfigError when another process could not import the workflow."""
        processes = experiment.ajet.rollout.processes or processes_of_this_machine()
        return cls(home_of(workflow_class, experiment, ambient), processes)

    @classmethod
    def require_isolable(cls, experiment: Experiment, workflow_class: type[Any]) -> None:
        """Raise ConfigError if another process could not import the workflow."""
        home_of(workflow_class, experiment, Endpoint("", ""))

    def __init__(self, home: Home, processes: int) -> None:
        """`processes`: at most so many are given attempts at a time."""
        self._home, self._processes = replace(home, shared=True), processes
        self._lock = threading.Lock()
        self._handles: list[LoopsHandle] = []
        self._where: dict[Attempt, LoopsHandle] = {}
        self._warned: set[str] = set()
        self._closed = False

    @property
    def abandoned(self) -> int:
        """Attempts that were stopped and whose end no process has told yet."""
        with self._lock:
            return sum(handle.abandoned for handle in self._handles)

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin in the process that plays the fewest, or in a new one."""
        future: Future[WorkflowOutput] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(failed("stopped", "the rollout was closed", boundary="ajet"))
                return future
            handle = self._fewest()
            while not handle.begin(attempt, future):
                handle = self._fewest()
            self._where[attempt] = handle
        future.add_done_callback(lambda _: self._where.pop(attempt, None))
        return future

    def stands(self, attempt: Attempt) -> str:
        """See Isolation."""
        handle = self._where.get(attempt)
        return handle.stands(attempt) if handle is not None else ""

    def stop(self, attempt: Attempt) -> None:
        """Cancel its task; a process in which it goes on is ended once it plays nothing else."""
        handle = self._where.pop(attempt, None)
        if handle is not None:
            handle.stop(attempt)

    def close(self) -> None:
        """Kill all."""
        with self._lock:
            self._closed = True
            handles = tuple(self._handles)
        for handle in handles:
            handle.close()

    def _fewest(self) -> LoopsHandle:
        self._handles = [handle for handle in self._handles if handle.takes or handle.playing or handle.abandoned]
        able = [handle for handle in self._handles if handle.takes]
        found = min(able, key=lambda handle: (handle.abandoned > 0, handle.playing), default=None)
        if found is None or (found.playing + found.abandoned and len(able) < self._processes):
            found = LoopsHandle(self._home, self._warned)
            self._handles.append(found)
        return found


def processes_of_this_machine() -> int:
    """One fewer than the cores that this process may use, for the gateway and the engine; at least one."""
    return max(1, (usable_cpus() or 1) - 1)
