"""Many attempts on the event loop of each of a few worker processes, for agents too heavy for one processor.

Invariants: an attempt goes to the worker with the fewest attempts. A dead worker, or a worker where a stopped attempt
still runs, gets no more attempts. The next attempt gets a new worker. In a worker, attempts share a loop as with
`loop`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.record.processors import usable_cpus
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.rollout.isolation.worker_handle import WorkerHandle
from ajet.rollout.isolation.worker_pool import WorkerPool, find_setup
from ajet.schema.endpoint import Endpoint

if TYPE_CHECKING:
    from ajet.config import Experiment


class LoopsIsolation(WorkerPool):
    """Plays many attempts at the same time in each worker."""

    shares_loop = True

    @classmethod
    def create(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> LoopsIsolation:
        """Return the isolation. Raises ConfigError if another process could not import the workflow."""
        processes = experiment.ajet.rollout.processes or count_worker_processes()
        return cls(find_setup(workflow_class, experiment, ambient), processes)

    def __init__(self, setup: WorkerSetup, processes: int) -> None:
        """Prepare the pool. `processes` is the maximum number of workers that accept attempts at the same time."""
        super().__init__(replace(setup, shared=True))
        self._processes = processes

    def _choose_worker(self) -> WorkerHandle:
        """Return the worker with the fewest attempts, or a new worker."""
        able = [worker for worker in self._workers if worker.is_accepting]
        fewest = min(able, key=lambda worker: (worker.abandoned_count > 0, worker.playing_count), default=None)
        if fewest is None or (fewest.playing_count + fewest.abandoned_count and len(able) < self._processes):
            return self._open_worker()
        return fewest


def count_worker_processes() -> int:
    """Return the number of usable cores, minus one for the gateway and the engine, at least 1."""
    return max(1, (usable_cpus() or 1) - 1)
