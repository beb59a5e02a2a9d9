from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from ajet.rollout.attempt import LocalAttempt
from ajet.rollout.isolation.shared_player import LoopIsolation
from ajet.rollout.runtime import UserLoop
from ajet.schema.task import Task, WorkflowTask
from tests.support.rollout_workflows import Asks
from tests.support.waiting import until


class Blocks:
    """What keeps a loop from here on, until `go`."""

    def __init__(self, loop: UserLoop) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.ended: Future[None] = loop.submit(self._block())

    async def _block(self) -> None:
        self.begun.set()
        self.go.wait()


@pytest.mark.slow
def test_an_attempt_that_is_stopped_as_it_ends_is_not_kept() -> None:
    isolation = LoopIsolation()

    def of_a_stopped_one() -> weakref.ref[LocalAttempt]:
        attempt = LocalAttempt(Asks, WorkflowTask(task=Task(main_query="x")), None, lambda _: None)  # type: ignore[arg-type, return-value]
        before = Blocks(isolation.loops[0])
        before.begun.wait()
        isolation.start(attempt)  # it ends in its first step, for it has no session
        after = Blocks(isolation.loops[0])
        before.go.set()
        after.begun.wait()  # its task has ended, and nobody has been told yet
        isolation.stop(attempt)
        after.go.set()
        after.ended.result()
        return weakref.ref(attempt)

    try:
        kept = of_a_stopped_one()
        assert until(lambda: gc.collect() >= 0 and kept() is None, seconds=20)
    finally:
        isolation.close()
