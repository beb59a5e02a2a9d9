"""One process an attempt at a time: the only isolation whose hang can be killed.

Invariants: a worker is ended with all that descends from it (Linux; elsewhere with its process group), by its own
recorded id, and before that id can be anybody else's; it ends itself when this process is gone. Every message on a
worker's pipe bears the number of its attempt; a worker that speaks of another one is ended, never believed. One that
was killed or died, or that an attempt left changed, is replaced by a new one. Inside, clients reach the gateway over
its loopback port. Linux and macOS.
"""

from __future__ import annotations

import inspect
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from loguru import logger

from ajet.config.programs import program
from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import EpisodeFailed, failed
from ajet.rollout.isolation.family import end_family
from ajet.rollout.isolation.printed import Printed
from ajet.rollout.isolation.thread import settle
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

LONGEST = 1 << 28
"""Bytes of one message: a longer output fails its episode."""
GRACE = 2.0
"""Seconds between asking what a workflow started to end and ending it; before that, seconds that it gets to close what
its attempt opened."""
STANDS_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


@dataclass(frozen=True, slots=True)
class Home:
    """Where the workflow class comes from, for another process."""

    reference: str
    base: Path
    paths: tuple[str, ...]
    ambient: Endpoint
    """What clients that are given nothing find in its environment while no attempt is played."""


class ProcessIsolation:
    """See the module."""

    shared, apart = False, True

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> ProcessIsolation:
        """Raises ConfigError when another process could not import the workflow."""
        return cls(experiment, workflow_class, ambient)

    def __init__(self, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> None:
        """Raises ConfigError when another process could not import the workflow."""
        self._home = home_of(workflow_class, experiment, ambient)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: dict[Attempt, Worker | None] = {}
        self._killed: set[Worker] = set()
        self._said: set[str] = set()
        self._closed = False

    @property
    def abandoned(self) -> int:
        """Processes that live on although they were killed."""
        with self._lock:
            self._killed = {worker for worker in self._killed if worker.alive}
            return len(self._killed)

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin in an idle worker, or in a new one."""
        future: Future[WorkflowOutput] = Future()
        with self._lock:
            self._busy[attempt] = None
        name = f"ajet-{attempt.task.task_tag}"
        threading.Thread(target=settle, args=(future, self._run, attempt), name=name, daemon=True).start()
        return future

    def stands(self, attempt: Attempt) -> str:
        """See Isolation: not known of another process."""
        return ""

    def stop(self, attempt: Attempt) -> None:
        """Kill its process group."""
        with self._lock:
            worker = self._busy.pop(attempt, None)
            if worker is not None:
                self._killed.add(worker)
        if worker is not None:
            attempt.printed = worker.printed()
            worker.kill()

    def close(self) -> None:
        """Kill all."""
        with self._lock:
            self._closed = True
            workers = [worker for worker in (*self._busy.values(), *self._idle) if worker is not None]
            self._idle, self._busy = [], {}
        for worker in workers:
            worker.kill()

    def _run(self, attempt: Attempt) -> WorkflowOutput:
        worker = self._take(attempt)
        try:
            return worker.run(attempt)
        finally:
            attempt.printed = attempt.printed or worker.printed()
            with self._lock:
                mine = self._busy.pop(attempt, None) is worker
                usable = worker.alive and not worker.changes
                if mine and usable and not self._closed:
                    worker.forget_printed()
                    self._idle.append(worker)
            if mine and not usable:
                self._retire(worker)

    def _retire(self, worker: Worker) -> None:
        """Its next attempt would find what this one left."""
        worker.kill()
        news = [change for change in worker.changes if change not in self._said]
        self._said.update(news)
        if news:
            logger.warning(
                "rollout.isolation process: a workflow left {} changed or running; its process is replaced, so that no "
                "other attempt meets that (each such attempt costs the start of a process)",
                " and ".join(news),
            )

    def _take(self, attempt: Attempt) -> Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    self._busy[attempt] = worker
                    return worker
        worker = Worker(self._home)
        with self._lock:
            if attempt in self._busy and not self._closed:
                self._busy[attempt] = worker
                return worker
        worker.kill()
        raise failed("stopped", "the episode was stopped before its process began", boundary="ajet")


class Worker:
    """A process that runs one attempt after the other."""

    def __init__(self, home: Home) -> None:
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        self._printed = Printed()
        command = program("ajet.rollout.isolation.worker", str(theirs.fileno()), str(life), unbuffered=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, home.paths))}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._printed.theirs,
            stderr=self._printed.theirs,
            pass_fds=(theirs.fileno(), life),
            start_new_session=True,
            env=environment,
        )
        self._printed.begin()
        theirs.close()
        os.close(life)
        self._connection = Connection(ours.detach())
        self._connection.send(home)
        self._burial = threading.Lock()
        self._number = 0
        self.changes: list[str] = []
        """What its last attempt left otherwise than it found it, in words."""

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def run(self, attempt: Attempt) -> WorkflowOutput:
        """Serve one attempt until it ends. Raises EpisodeFailed."""
        self._number += 1
        try:
            self._connection.send((self._number, attempt.task, attempt.config))
            while True:
                kind, value = self._hear()
                if kind == "ended":
                    how, outcome, self.changes = value
                    if how == "output":
                        return outcome
                    raise EpisodeFailed(outcome)
                if kind == "open":
                    attempt.stage = "open"
                self._connection.send((self._number, *_answer(attempt, kind, value)))
        except _Garbled as problem:
            self._end()
            raise failed("process_died", f"{problem}\n{self.printed()}".strip()) from problem
        except (EOFError, OSError):
            code = self._end()
            raise failed(
                "process_died", f"the workflow's process ended with code {code}\n{self.printed()}".strip()
            ) from None

    def _hear(self) -> tuple[Any, Any]:
        """The next message of the attempt at hand. Raises _Garbled for any other."""
        raw = self._connection.recv_bytes(LONGEST + 4096)
        try:
            number, kind, value = pickle.loads(raw)
        except Exception as problem:
            raise _Garbled(f"what came from the workflow's process cannot be read here: {problem!r}") from problem
        if number != self._number:
            raise _Garbled("the workflow's process spoke of another attempt; it was ended")
        return kind, value

    def printed(self) -> str:
        """The end of what this attempt wrote to standard output and error."""
        return self._printed.text()

    def forget_printed(self) -> None:
        """Begin anew for the next attempt."""
        self._printed.forget()

    def kill(self) -> None:
        """End it with all that descends from it; does not wait."""
        threading.Thread(target=self._end, args=(GRACE,), name="ajet-bury", daemon=True).start()

    def _end(self, grace: float = 0.0) -> int:
        """The same, and wait. Answers how the process ended."""
        with self._burial:
            if self._process.returncode is None:  # not waited for: its id is still its own
                self._have_it_close(GRACE)
                end_family(self._process.pid, grace)
                os.close(self._life)
            return self._process.wait()

    def _have_it_close(self, grace: float) -> None:
        """It closes what its attempt opened, and stands still when that is done."""
        with suppress(OSError):
            os.write(self._life, b"c")
        until = time.monotonic() + grace
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            while process.status() not in STANDS_STILL and time.monotonic() < until:
                time.sleep(0.005)


class _Garbled(Exception):
    """A message that nobody who plays this attempt has sent."""


def _answer(attempt: Attempt, kind: str, value: Any) -> tuple[str, Any]:
    """What the process asks for: its session, or the endpoint of an agent."""
    try:
        if kind == "open":
            attempt.open(value)
            return "ok", None
        assert attempt.session is not None
        if kind == "context_full":
            return "ok", attempt.session.context_full()
        return "ok", replace(attempt.session(*value), transport=None)
    except Exception as problem:  # noqa: BLE001 - it is raised in the process that asked
        return "error", problem.failure if isinstance(problem, EpisodeFailed) else repr(problem)


def home_of(workflow_class: type[Any], experiment: Experiment, ambient: Endpoint) -> Home:
    """How another process finds the class."""
    paths = tuple(path or str(Path.cwd()) for path in sys.path)
    base = experiment.base
    reference = experiment.ajet.rollout.user_workflow
    name = workflow_class.__qualname__
    if isinstance(reference, str) and reference.replace(":", "->").rpartition("->")[2].strip() == name:
        return Home(reference, base, paths, ambient)
    source = inspect.getsourcefile(workflow_class)
    if "." in name or source is None:
        raise ConfigError(
            f"The workflow {name} cannot be imported by another process.",
            where="ajet.rollout.isolation: process",
            expected="a class at the top level of a file",
        )
    if workflow_class.__module__ != "__main__" and sys.modules[workflow_class.__module__].__spec__ is not None:
        return Home(f"{workflow_class.__module__}->{name}", base, paths, ambient)
    return Home(f"{Path(source).resolve()}->{name}", base, paths, ambient)
