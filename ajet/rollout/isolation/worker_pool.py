"""The worker processes of a rollout and the queue of attempts for them.

The isolations `process`, `sandbox` and `loops` share the pool. Invariants: attempts are placed in the order of arrival,
by the isolation's `_choose_worker`, and again when a worker changes. No method waits for a worker. Clients inside a
worker reach the gateway over its loopback port. Linux and macOS.
"""

from __future__ import annotations

import inspect
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.rollout.attempt import LocalAttempt
from ajet.rollout.failure import make_error
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.rollout.isolation.worker_handle import WorkerHandle
from ajet.rollout.isolation.worker_process import StartedWorker, WorkerFds, start_process
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


class WorkerPool(ABC):
    """An isolation that plays attempts in workers."""

    is_remote = True

    @classmethod
    def require_isolable(cls, experiment: Experiment, workflow_class: type[Any]) -> None:
        """Raise ConfigError if another process could not import the workflow."""
        find_setup(workflow_class, experiment, Endpoint("", ""))

    def __init__(self, setup: WorkerSetup) -> None:
        """Start without workers. `setup` is sent to each new worker."""
        self._setup = setup
        self._lock = threading.RLock()
        self._workers: list[WorkerHandle] = []
        """Workers with a running process, the oldest first."""
        self._waiting_attempts: deque[tuple[LocalAttempt, Future[WorkflowOutput]]] = deque()
        """Attempts waiting for a worker."""
        self._worker_of: dict[LocalAttempt, WorkerHandle] = {}
        self._logged_warnings: set[str] = set()
        """Warnings logged already. Each warning is logged once."""
        self._closed = False

    @property
    def abandoned_count(self) -> int:
        """The number of stopped attempts that have not ended yet."""
        with self._lock:
            return sum(worker.abandoned_count for worker in self._workers)

    def start(self, attempt: LocalAttempt) -> Future[WorkflowOutput]:
        """Start the attempt, now or when a worker is free for the attempt."""
        future: Future[WorkflowOutput] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(make_error("stopped", "the rollout was closed", boundary="ajet"))
                return future
            self._waiting_attempts.append((attempt, future))
        self._place_waiting()
        return future

    def locate(self, attempt: LocalAttempt) -> str:
        """Return the attempt's current line of user code, as `Isolation.locate` does."""
        worker = self._worker_of.get(attempt)
        return worker.locate(attempt) if worker is not None else ""

    def stop(self, attempt: LocalAttempt) -> None:
        """Cancel the attempt, or kill the attempt's process, as `WorkerHandle.stop` does."""
        with self._lock:
            worker = self._worker_of.pop(attempt, None)
            waiting = [entry for entry in self._waiting_attempts if entry[0] is attempt]
            for entry in waiting:
                self._waiting_attempts.remove(entry)
        if worker is not None:
            worker.stop(attempt)
        _fail_stopped(waiting)
        self._place_waiting()

    def close(self) -> None:
        """Kill all workers and fail all waiting attempts."""
        with self._lock:
            self._closed = True
            workers, waiting = tuple(self._workers), tuple(self._waiting_attempts)
            self._waiting_attempts.clear()
        for worker in workers:
            worker.close()
        _fail_stopped(waiting)

    def start_worker(self, setup: WorkerSetup, fds: WorkerFds) -> StartedWorker:
        """Start a worker's process, in a thread of the handle. Raises OSError, SandboxFailure."""
        return start_process(setup, fds)

    @abstractmethod
    def _choose_worker(self) -> WorkerHandle | None:
        """Return the worker for the first waiting attempt, or None if the attempt has to wait. The lock is held."""

    def _open_worker(self) -> WorkerHandle:
        """Return a new worker, whose process starts now. The lock is held."""
        worker = WorkerHandle(self._setup, self.start_worker, on_change=self._note_change, warned=self._logged_warnings)
        self._workers.append(worker)
        return worker

    def _note_change(self, worker: WorkerHandle) -> None:
        """React to a worker's first message, the end of an attempt in the worker, and the end of the process."""
        if worker.is_over:
            with self._lock:
                self._workers = [open_worker for open_worker in self._workers if open_worker is not worker]
        self._place_waiting()

    def _place_waiting(self) -> None:
        """Start waiting attempts, the oldest first, until `_choose_worker` has no worker for the next."""
        with self._lock:
            while self._waiting_attempts and not self._closed and (worker := self._choose_worker()) is not None:
                attempt, future = self._waiting_attempts[0]
                # A refusal means that the worker has just closed; the loop then chooses another one.
                if worker.begin(attempt, future):
                    self._waiting_attempts.popleft()
                    self._worker_of[attempt] = worker
                    future.add_done_callback(partial(self._forget_attempt, attempt))

    def _forget_attempt(self, attempt: LocalAttempt, future: Future[WorkflowOutput]) -> None:
        """Forget the worker of an attempt with a done future. A cancelled future's attempt still runs until it is
        stopped.
        """
        if not future.cancelled():
            self._worker_of.pop(attempt, None)


def _fail_stopped(waiting: Iterable[tuple[LocalAttempt, Future[WorkflowOutput]]]) -> None:
    """Fail attempts without a worker."""
    for _, future in waiting:
        if future.set_running_or_notify_cancel():
            reason = "the episode was stopped before its process started"
            future.set_exception(make_error("stopped", reason, boundary="ajet"))


def find_setup(workflow_class: type[Any], experiment: Experiment, ambient: Endpoint) -> WorkerSetup:
    """Return the description by which another process imports the workflow. Raises ConfigError if it cannot."""
    paths = tuple(path or str(Path.cwd()) for path in sys.path)
    base = experiment.base
    reference = experiment.ajet.rollout.user_workflow
    name = workflow_class.__qualname__
    if isinstance(reference, str) and reference.replace(":", "->").rpartition("->")[2].strip() == name:
        return WorkerSetup(reference, base, paths, ambient)
    source = inspect.getsourcefile(workflow_class)
    if "." in name or source is None:
        raise ConfigError(
            f"Another process cannot import the workflow {name}.",
            where=f"ajet.rollout.isolation: {experiment.ajet.rollout.isolation}",
            expected="a class or function at the top level of a file",
        )
    if workflow_class.__module__ != "__main__" and sys.modules[workflow_class.__module__].__spec__ is not None:
        return WorkerSetup(f"{workflow_class.__module__}->{name}", base, paths, ambient)
    return WorkerSetup(f"{Path(source).resolve()}->{name}", base, paths, ambient)
