from __future__ import annotations

import gc
import subprocess
import weakref
from pathlib import Path

import pytest

from ajet.config import Experiment
from ajet.rollout.attempt import Attempt
from ajet.rollout.isolation.messages import Home
from ajet.rollout.isolation.process import ProcessIsolation
from ajet.rollout.isolation.worker_handle import Ends, Started, WorkerHandle
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import Task, WorkflowTask
from tests.rollout_workflows import Asks
from tests.waiting import until


class SleepingWorkers(ProcessIsolation):
    """Its workers say nothing: they start at once."""

    def _new(self) -> WorkerHandle:
        return WorkerHandle(self._home, _sleeps)


def _sleeps(home: Home, ends: Ends) -> Started:
    return Started(subprocess.Popen(["sleep", "600"], start_new_session=True, pass_fds=(ends.channel,)))


@pytest.mark.slow
def test_a_killed_worker_is_let_go_of_though_nobody_asks_what_was_abandoned() -> None:
    """With its socket: groups that are asked for one by one may be a million."""
    experiment = Experiment.from_dict({"ajet": {}}, base=Path.cwd())
    isolation = SleepingWorkers(experiment, Asks, Endpoint("http://127.0.0.1:9/v1", "key"))

    def killed() -> weakref.ref[WorkerHandle]:
        attempt = Attempt(Asks, WorkflowTask(task=Task(main_query="x")), experiment.config, lambda _: None)  # type: ignore[arg-type, return-value]
        ended = isolation.start(attempt)
        assert until(lambda: isolation._busy.get(attempt) is not None)
        worker = isolation._busy[attempt]
        assert worker is not None
        isolation.stop(attempt)
        assert ended.exception() is not None and until(lambda: not worker.alive)
        return weakref.ref(worker)

    try:
        first, _ = killed(), killed()
        assert until(lambda: gc.collect() >= 0 and first() is None, seconds=20)
    finally:
        isolation.close()
