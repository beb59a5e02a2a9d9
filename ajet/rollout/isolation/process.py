"""One attempt at a time in each worker process. A hanging attempt is killed with its process.

Invariants: a worker plays no other attempt if the worker was killed, died, or was left changed by an attempt. Only a
few workers start at once, because a start costs seconds of a processor. Two hundred starts at a time would be ready no
sooner, would need the memory of all, and would slow down everything else on the machine.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record.processors import usable_cpus
from ajet.rollout.isolation.worker_handle import WorkerHandle
from ajet.rollout.isolation.worker_pool import WorkerPool, find_setup
from ajet.schema.endpoint import Endpoint

if TYPE_CHECKING:
    from ajet.config import Experiment

STARTS_PER_PROCESSOR = 2
"""Concurrent starts per usable processor: one start reads files while the other computes."""


class ProcessIsolation(WorkerPool):
    """Plays each attempt alone in a worker."""

    shares_loop = False
    keeps_workers = True
    """True if an unchanged worker plays further attempts."""

    @classmethod
    def create(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> ProcessIsolation:
        """Return the isolation. Raises ConfigError if another process could not import the workflow."""
        return cls(experiment, workflow_class, ambient)

    def __init__(self, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> None:
        """Raises ConfigError if another process could not import the workflow."""
        super().__init__(find_setup(workflow_class, experiment, ambient))
        self._idle: list[WorkerHandle] = []
        self.max_starts = STARTS_PER_PROCESSOR * (usable_cpus() or 1)
        self._timer: threading.Timer | None = None

    def _choose_worker(self) -> WorkerHandle | None:
        """Return an idle worker, or a new worker, or None while the maximum number of workers starts."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.close()
        starting = [remaining for worker in self._workers if (remaining := worker.remaining_start_seconds)]
        if len(starting) < self.max_starts:
            return self._open_worker()
        if self._timer is None:
            self._timer = threading.Timer(min(starting), self._place_later)
            self._timer.daemon = True
            self._timer.start()
        return None

    def _place_later(self) -> None:
        """Place waiting attempts. A start of this duration is no longer counted."""
        with self._lock:
            self._timer = None
        self._place_waiting()

    def _note_change(self, worker: WorkerHandle) -> None:
        """Store a worker whose attempt has ended as idle, or replace it if the attempt left it changed. Forget an ended
        worker.
        """
        if worker.is_over:
            with self._lock:
                self._idle = [idle_worker for idle_worker in self._idle if idle_worker is not worker]
        elif worker.is_accepting and not worker.playing_count:  # the worker's attempt has ended
            if self.keeps_workers and worker.is_alive and not worker.changes:
                worker.forget_output()
                with self._lock:
                    self._idle.append(worker)
            else:
                self._retire_worker(worker)
        super()._note_change(worker)

    def _retire_worker(self, worker: WorkerHandle) -> None:
        """Kill a worker whose process an attempt left changed. Log each kind of change once."""
        worker.close()
        with self._lock:
            news = [change for change in worker.changes if change not in self._logged_warnings]
            self._logged_warnings.update(news)
        if news and self.keeps_workers:
            logger.warning(
                "a workflow left {} changed or running in its process (rollout.isolation: process); ajet "
                "replaces the process to protect other attempts, and each replacement costs the start of a "
                "process",
                " and ".join(news),
            )
