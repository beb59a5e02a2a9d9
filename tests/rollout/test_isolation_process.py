"""Which worker plays an attempt under isolation `process`; the workers are puppets that a test speaks for."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.config import Experiment
from ajet.config.view import View
from ajet.rollout.attempt import LocalAttempt
from ajet.rollout.failure import EpisodeError
from ajet.rollout.isolation import process, worker_handle, worker_process
from ajet.rollout.isolation.channel import Message, MessageChannel, encode_value
from ajet.rollout.isolation.messages import WorkerSetup, encode_output
from ajet.rollout.isolation.process import ProcessIsolation
from ajet.rollout.isolation.worker_process import StartedWorker, WorkerFds
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import SandboxFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from tests.support.waiting import until


class Flow:
    """A workflow that no worker plays."""


class Puppet:
    """A worker whose process only sleeps."""

    def __init__(self, ends: WorkerFds) -> None:
        self.descriptor, self.output = os.dup(ends.channel), os.dup(ends.output)
        self.channel = MessageChannel(self.descriptor, self.descriptor)
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True)

    def hear(self, kind: str) -> Message:
        """Return the next message, which is of that kind."""
        found = self.channel.receive()
        assert found.kind == kind, found
        return found

    def end(self, number: int, *changes: str) -> None:
        """Report the end of an attempt."""
        self.channel.send(number, "ended", encode_output(WorkflowOutput(reward=1.0), list(changes)))

    def disconnect(self) -> None:
        """Close its descriptors, as the kernel would."""
        os.close(self.descriptor)
        os.close(self.output)

    @property
    def is_killed(self) -> bool:
        return until(lambda: self.process.returncode is not None)


class PuppetWorkers(ProcessIsolation):
    """Its workers are puppets, and at most two start at once."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment, Flow, Endpoint("http://127.0.0.1:9/v1", "key"))
        self.max_starts = 2
        self.puppets: list[Puppet] = []
        self.may_start, self.begun = threading.Event(), 0
        self.may_start.set()
        self.problem: Exception | None = None

    def start_worker(self, setup: WorkerSetup, ends: WorkerFds) -> StartedWorker:
        self.begun += 1
        assert self.may_start.wait(60)
        if self.problem is not None:
            raise self.problem
        puppet = Puppet(ends)
        self.puppets.append(puppet)
        return StartedWorker(puppet.process)

    def play(self, count: int = 1) -> list[tuple[LocalAttempt, Future[WorkflowOutput]]]:
        """Start so many attempts."""
        made = []
        for number in range(count):
            task = WorkflowTask(task=Task(main_query=str(number)), task_tag="T")
            attempt = LocalAttempt(Flow, task, View({"ajet": {}}), lambda _: None)  # type: ignore[arg-type, return-value]
            made.append((attempt, self.start(attempt)))
        return made

    def has_begun(self, count: int) -> bool:
        """True if so many workers start in time."""
        return until(lambda: self.begun >= count and len(self.puppets) >= count)


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PuppetWorkers]:
    monkeypatch.setattr(worker_process, "GRACE", 0.05)
    rollout = {"user_workflow": "flow.py->Flow", "isolation": "process"}
    made = PuppetWorkers(Experiment.from_dict({"ajet": {"rollout": rollout}}, base=tmp_path))
    yield made
    made.may_start.set()
    made.close()
    for puppet in made.puppets:
        assert puppet.is_killed
        puppet.disconnect()


def test_a_third_starts_when_one_of_two_has_spoken(workers: PuppetWorkers) -> None:
    workers.play(4)
    assert workers.has_begun(2) and workers.begun == 2
    workers.puppets[0].channel.send(1, "context_full", encode_value(None))
    workers.puppets[0].channel.send(1, "context_full", encode_value(None))  # it speaks often, and starts once
    assert workers.has_begun(3)
    assert workers.begun == 3
    workers.puppets[1].channel.send(1, "context_full", encode_value(None))
    assert workers.has_begun(4)


def test_long_starts_hold_up_no_other(workers: PuppetWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_handle, "START_WINDOW_S", 0.05)
    workers.play(5)
    assert workers.has_begun(5)


def test_waiting_attempt_gets_the_worker_that_is_free_first(workers: PuppetWorkers) -> None:
    attempts = workers.play(4)
    assert workers.has_begun(2)
    puppet = workers.puppets[0]
    puppet.channel.send(1, "context_full", encode_value(None))
    assert [puppet.hear(kind).about for kind in ("setup", "attempt", "error")] == [0, 1, 1]
    assert workers.has_begun(3) and workers.begun == 3, "two start, and the fourth attempt waits"
    puppet.end(1)
    assert until(lambda: [future.done() for _, future in attempts].count(True) == 1)
    again = puppet.hear("attempt")
    assert again.about == 2 and again.body["config"] == {"ajet": {}}, "each attempt has a configuration of its own"


def test_stopped_attempts_free_their_place(workers: PuppetWorkers) -> None:
    attempts = workers.play(4)
    assert workers.has_begun(2)
    workers.stop(attempts[2][0])
    with pytest.raises(EpisodeError, match="before its process started"):
        attempts[2][1].result(60)
    workers.stop(attempts[0][0])
    assert workers.has_begun(3) and workers.begun == 3
    assert until(lambda: [puppet.process.returncode for puppet in workers.puppets].count(None) == 2)


def test_attempt_whose_future_was_cancelled_can_be_stopped(workers: PuppetWorkers) -> None:
    ((attempt, future),) = workers.play()
    assert workers.has_begun(1) and future.cancel()
    workers.stop(attempt)
    assert workers.puppets[0].is_killed


def test_worker_that_an_attempt_changed_is_replaced(workers: PuppetWorkers) -> None:
    warnings: list[str] = []
    handler = logger.add(warnings.append, format="{message}", level="WARNING")
    try:
        for number in range(1, 4):
            ((attempt, future),) = workers.play()
            assert workers.has_begun(number)
            puppet = workers.puppets[-1]
            os.write(puppet.output, f"of {number}".encode())
            puppet.end(1, "the environment (X)")
            future.result(60)
            assert puppet.is_killed and attempt.printed == f"of {number}"
    finally:
        logger.remove(handler)
    assert len(warnings) == 1 and "the environment (X)" in warnings[0], "each kind of change is said once"


def test_output_belongs_to_the_attempt_that_wrote_it(workers: PuppetWorkers) -> None:
    printed = []
    for number in (1, 2):
        ((attempt, future),) = workers.play()
        assert workers.has_begun(1)
        os.write(workers.puppets[0].output, f"of {number}".encode())
        workers.puppets[0].end(number)
        future.result(60)
        printed.append(attempt.printed)
    assert printed == ["of 1", "of 2"] and workers.begun == 1


def send_bad_end(channel: MessageChannel) -> None:
    channel.send(1, "ended", encode_value({"output": {"reward": "much"}, "left": []}))


def send_unknown_kind(channel: MessageChannel) -> None:
    channel.send(1, "shell", encode_value("rm"))


def send_for_another(channel: MessageChannel) -> None:
    channel.send(2, "context_full", encode_value(None))


def send_warning(channel: MessageChannel) -> None:
    channel.send(0, "warning", encode_value(["believe me\n", 0]))


def send_printed(channel: MessageChannel) -> None:
    channel.send(1, "printed", encode_value(["x", 0]))


@pytest.mark.parametrize("send", [send_bad_end, send_unknown_kind, send_for_another, send_warning, send_printed])
def test_worker_that_sends_anything_else_is_killed(
    workers: PuppetWorkers, send: Callable[[MessageChannel], None]
) -> None:
    ((_, future),) = workers.play()
    assert workers.has_begun(1)
    send(workers.puppets[0].channel)
    with pytest.raises(EpisodeError, match="could not read a message") as problem:
        future.result(60)
    failure = problem.value.failure
    assert (failure.boundary, failure.kind, failure.retryable) == ("agent", "process_died", False)
    assert workers.puppets[0].is_killed and until(lambda: workers.abandoned_count == 0)


@pytest.mark.parametrize(
    ("problem", "kind"), [(SandboxFailure("none here"), SandboxFailure), (OSError(11, "no more"), EpisodeError)]
)
def test_start_that_fails_fails_its_attempt(workers: PuppetWorkers, problem: Exception, kind: Any) -> None:
    workers.problem = problem
    futures = [future for _, future in workers.play(4)]
    for future in futures:
        assert isinstance(future.exception(60), kind)
    if kind is EpisodeError:
        failure = futures[0].exception().failure  # type: ignore[union-attr]
        assert (failure.boundary, failure.retryable) == ("ajet", True) and "no more" in failure.message
    workers.problem = None
    workers.play()
    assert workers.has_begun(1)


def test_no_worker_starts_after_the_end(workers: PuppetWorkers) -> None:
    workers.may_start.clear()
    attempts = workers.play(5)
    assert until(lambda: workers.begun == 2)
    workers.close()
    for _, future in attempts[2:]:
        assert isinstance(future.exception(60), EpisodeError)
    workers.may_start.set()
    assert workers.has_begun(2) and all(puppet.is_killed for puppet in workers.puppets)
    assert isinstance(workers.play()[0][1].exception(60), EpisodeError) and workers.begun == 2


def test_killed_workers_leave_no_descriptors(workers: PuppetWorkers) -> None:
    """Though nothing asks what was abandoned: groups that are asked for one by one may be a million."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 4):
        ((attempt, _),) = workers.play()
        assert workers.has_begun(number)
        workers.stop(attempt)
        assert workers.puppets[-1].is_killed
    for puppet in workers.puppets:
        puppet.disconnect()
    workers.puppets.clear()
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_starts_are_as_many_as_processors_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "usable_cpus", lambda: 3)
    rollout = {"user_workflow": "flow.py->Flow", "isolation": "process"}
    experiment = Experiment.from_dict({"ajet": {"rollout": rollout}}, base=tmp_path)
    isolation = ProcessIsolation(experiment, Flow, Endpoint("http://127.0.0.1:9/v1", "key"))
    assert isolation.max_starts == 6
