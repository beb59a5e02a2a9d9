"""The rollout's side of a process of many attempts, whose place a test takes: the process itself only sleeps."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.config.view import View
from ajet.rollout.attempt import LocalAttempt
from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError
from ajet.rollout.isolation import messages, worker_handle, worker_process
from ajet.rollout.isolation.channel import MAX_MESSAGE_BYTES, Message, MessageChannel, encode_value
from ajet.rollout.isolation.messages import WorkerSetup, encode_output
from ajet.rollout.isolation.worker_handle import WorkerHandle
from ajet.rollout.isolation.worker_process import StartedWorker, WorkerFds
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from tests.support.waiting import until

HOME = WorkerSetup("flow.py->Flow", Path(), (), Endpoint("http://127.0.0.1:1/v1", "key", "model"), shared=True)


class Puppet:
    """A handle, and what its process hears and says."""

    def __init__(self) -> None:
        self.may_start = threading.Event()
        self.may_start.set()
        self.started = threading.Event()
        self.handle: WorkerHandle
        self.process: subprocess.Popen[bytes]
        self.channel: MessageChannel
        self.number = -1

    def start(self, setup: WorkerSetup, ends: WorkerFds) -> StartedWorker:
        """In the place of a worker's start."""
        self.may_start.wait()
        self.number = os.dup(ends.channel)
        self.channel = MessageChannel(self.number, self.number)
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.started.set()
        return StartedWorker(self.process)

    def hear(self, kind: str) -> Message:
        """The next message, which is of that kind."""
        assert self.started.wait(60)
        found = self.channel.receive()
        assert found.kind == kind, found
        return found

    def is_ended(self) -> bool:
        """Whether it is in time; its end of the channel is closed then, as the kernel would."""
        assert self.started.wait(60)
        ended = until(lambda: self.process.returncode is not None)
        if self.number >= 0:
            os.close(self.number)
            self.number = -1
        return ended

    def begin(self, **metadata: Any) -> tuple[LocalAttempt, Future[WorkflowOutput]]:
        """One more attempt."""
        task = WorkflowTask(task=Task(main_query="q", metadata=metadata), task_tag="T")
        attempt, future = LocalAttempt(object, task, CONFIG, lambda _: None), Future[WorkflowOutput]()  # type: ignore[arg-type, return-value]
        assert self.handle.begin(attempt, future)
        return attempt, future


CONFIG = View({"ajet": {}})


@pytest.fixture
def puppet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Puppet]:
    made = Puppet()
    for module in (worker_handle, worker_process):
        monkeypatch.setattr(module, "GRACE", 0.05)
    made.handle = WorkerHandle(HOME, made.start)
    yield made
    assert made.started.wait(60)
    made.handle.close()
    assert made.is_ended()


def test_a_process_that_stands_still_in_the_midst_of_a_message_is_ended(puppet: Puppet) -> None:
    """Who speaks to it waits for ever; it took every further attempt."""
    attempt, _ = puppet.begin(much="x" * (1 << 22))
    puppet.hear("setup")
    assert os.read(puppet.number, 8), "it is being sent, and there is no room for it"
    puppet.handle.stop(attempt)
    assert until(lambda: not puppet.handle.is_accepting)
    assert puppet.is_ended() and until(lambda: puppet.handle.abandoned_count == 0)


def test_it_is_ended_when_the_last_that_it_plays_is_stopped(puppet: Puppet) -> None:
    """However long after the first one that did not end. With that one's end alone it stayed."""
    first, second = puppet.begin()[0], puppet.begin()[0]
    assert [puppet.hear(kind).about for kind in ("setup", "attempt", "attempt")] == [0, 1, 2]
    puppet.handle.stop(first)
    assert until(lambda: not puppet.handle.is_accepting)
    assert puppet.process.poll() is None, "it plays the second one"
    puppet.handle.stop(second)
    assert puppet.is_ended()


def test_one_that_does_not_even_say_where_an_attempt_stands_is_given_no_others(
    puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the next two seconds were, and were late as it was."""
    monkeypatch.setattr(worker_handle, "GRACE", 600.0)
    monkeypatch.setattr(worker_handle, "UNRESPONSIVE_S", 0.0)
    first, second = puppet.begin()[0], puppet.begin()[0]
    assert [puppet.hear(kind).about for kind in ("setup", "attempt", "attempt")] == [0, 1, 2]
    assert puppet.handle.locate(first) == "" and puppet.handle.is_accepting
    puppet.handle.stop(first)
    assert not puppet.handle.is_accepting and puppet.handle.playing_count == 1
    puppet.handle.stop(second)


def test_one_that_was_stopped_before_it_was_told_costs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_handle, "GRACE", 600.0)
    monkeypatch.setattr(worker_process, "GRACE", 0.05)
    made = Puppet()
    made.may_start.clear()
    made.handle = WorkerHandle(HOME, made.start)
    attempt, future = made.begin()
    made.handle.stop(attempt)
    assert made.handle.abandoned_count == 1
    made.may_start.set()
    assert until(lambda: made.handle.abandoned_count == 0) and made.handle.is_accepting and not future.done()
    made.hear("setup")
    assert made.hear("stop").about == 1
    made.handle.close()
    assert made.is_ended()


def test_what_is_said_of_one_attempt_and_cannot_be_read_is_its_own_failure(puppet: Puppet) -> None:
    (_, bad), (attempt, good) = puppet.begin(), puppet.begin()
    puppet.hear("setup")
    assert puppet.hear("attempt").body["config"] == {"ajet": {}}
    assert puppet.hear("attempt").body["config"] is None, "it was told already"
    puppet.channel.send(2, "replay", encode_value([5, {}]))
    assert "cannot be read" in puppet.hear("error").body
    puppet.channel.send(1, "ended", encode_value({"output": {"reward": "much"}, "left": []}))
    puppet.channel.send(2, "printed", encode_value(["x" * OUTPUT_CHARS, 100]))
    puppet.channel.send(2, "printed", encode_value(["end", 0]))
    puppet.channel.send(2, "ended", encode_output(WorkflowOutput(reward=1.0), []))
    with pytest.raises(EpisodeError, match="cannot read") as problem:
        bad.result(60)
    assert (problem.value.failure.boundary, problem.value.failure.retryable) == ("agent", False)
    assert good.result(60).reward == 1.0 and puppet.handle.is_accepting
    assert attempt.printed.startswith("(103 characters before this were cut)") and attempt.printed.endswith("xend")


def test_who_speaks_of_others_attempts_is_ended(puppet: Puppet) -> None:
    _, future = puppet.begin()
    puppet.hear("setup")
    puppet.channel.send(2, "printed", encode_value(["x", 0]))
    with pytest.raises(EpisodeError, match="does not run") as problem:
        future.result(60)
    assert problem.value.failure.kind == "process_died" and problem.value.failure.retryable


class Gone(date):
    """A value of somebody's own that fails as it is told. Its attempt was never heard of again."""

    def isoformat(self) -> str:
        raise FileNotFoundError("calendar")


@pytest.mark.parametrize("held", [{"number": 10**5000}, {"own": object()}, {"much": "x"}, {"day": Gone(2026, 1, 1)}])
def test_a_task_that_cannot_be_told_fails_alone(puppet: Puppet, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if "much" in held:
        monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 10)
    _, refused = puppet.begin(**held)
    with pytest.raises(EpisodeError, match="cannot be sent to the workflow's process") as problem:
        refused.result(60)
    assert (problem.value.failure.boundary, problem.value.failure.kind) == ("ajet", "no_data")
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", MAX_MESSAGE_BYTES)
    puppet.begin()
    puppet.hear("setup")
    assert puppet.hear("attempt").about == 2


def test_a_warning_in_a_process_is_said_once_in_the_runs_log(puppet: Puppet) -> None:
    said: list[str] = []
    handler = logger.add(said.append, format="{level} {message}", level="WARNING")
    try:
        _, future = puppet.begin()
        puppet.hear("setup")
        for _ in range(3):
            puppet.channel.send(0, "warning", encode_value(["it blocks\n", 0]))
        puppet.channel.send(1, "ended", encode_output(WorkflowOutput(reward=1.0), []))
        future.result(60)
    finally:
        logger.remove(handler)
    assert [line.strip() for line in said] == [
        "WARNING a worker process (rollout.isolation: loops) printed a warning: it blocks"
    ]
