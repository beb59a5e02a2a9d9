"""Workers start a few at a time, and none is waited for long."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.rollout.failure import EpisodeFailed
from ajet.rollout.isolation import pace
from ajet.rollout.isolation.pace import Pace, Start
from ajet.rollout.isolation.process import ProcessIsolation
from ajet.rollout.isolation.worker_handle import WorkerHandle
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import SandboxFailure
from tests.waiting import until


def never() -> bool:
    return False


def test_a_third_starts_when_one_of_two_was_heard() -> None:
    most, begun = Pace(2), list[Start]()

    def starts() -> None:
        start = most.turn(never)
        assert start is not None
        begun.append(start)

    threads = [threading.Thread(target=starts, daemon=True) for _ in range(4)]
    for each in threads:
        each.start()
    assert until(lambda: len(begun) == 2)
    threads[2].join(0.05)
    assert len(begun) == 2
    begun[0].over()
    begun[0].over()  # a worker says many things: it starts once
    assert until(lambda: len(begun) == 3)
    threads[3].join(0.05)
    assert len(begun) == 3
    begun[1].over()
    assert until(lambda: len(begun) == 4)


def test_one_that_is_long_in_its_start_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "STARTS_S", 0.02)
    most = Pace(1)
    assert [most.turn(never) is not None for _ in range(3)] == [True] * 3


def test_who_waits_hears_that_there_is_something_else_to_do() -> None:
    most, stopped, found = Pace(1), threading.Event(), list[Start | None]()
    assert most.turn(never) is not None
    waits = threading.Thread(target=lambda: found.append(most.turn(stopped.is_set)), daemon=True)
    waits.start()
    stopped.set()
    most.look()
    waits.join(10)
    assert found == [None]


class Flow:
    """A workflow that nobody plays."""


class Attempted:
    """What of an attempt is looked at before its worker is there."""

    def __init__(self, number: int) -> None:
        self.task = SimpleNamespace(task_tag=str(number))


class Starting(ProcessIsolation):
    """Its workers are long in their start, and then there are none."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment, Flow, Endpoint("http://127.0.0.1:9/v1", "key"))
        self._pace = Pace(2)
        self.begun, self.may = list[int](), threading.Event()

    def _new(self) -> WorkerHandle:
        self.begun.append(1)
        assert self.may.wait(60)
        raise SandboxFailure("there is none here")


def test_workers_of_a_rollout_start_so_and_none_does_after_the_end(tmp_path: Path) -> None:
    rollout = {"user_workflow": "flow.py->Flow", "isolation": "process"}
    isolation = Starting(Experiment.from_dict({"ajet": {"rollout": rollout}}, base=tmp_path))
    attempts: list[Any] = [Attempted(number) for number in range(5)]
    futures = [isolation.start(each) for each in attempts]
    assert until(lambda: len(isolation.begun) == 2)
    assert len(isolation.begun) == 2, "the others wait for their turn"
    isolation.close()
    isolation.may.set()
    for future in futures:
        with pytest.raises((SandboxFailure, EpisodeFailed)):
            future.result(10)
    assert len(isolation.begun) == 2 and not isolation._pace._begun
