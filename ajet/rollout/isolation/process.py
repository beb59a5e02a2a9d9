"""One process an attempt at a time: the only isolation whose hang can be killed.

Invariants: a worker is the leader of its own process group, so that what the workflow started ends with it; it is
ended by its own recorded id, and before that id can be anybody else's; it ends itself when this process is gone. A
worker that was killed or died is replaced by a new one. Inside, clients reach the gateway over its loopback port.
Linux and macOS.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import EpisodeFailed, failed
from ajet.rollout.isolation.thread import settle
from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

PRINTED = 8_000
"""Characters kept of what an attempt wrote to its standard output and error, the last ones."""
GRACE = 2.0
"""Seconds between asking a process group to end and ending it."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where the workflow class comes from, for another process."""

    reference: str
    base: Path
    paths: tuple[str, ...]


class ProcessIsolation:
    """See the module."""

    def __init__(self, experiment: Experiment, workflow_class: type[Any]) -> None:
        """Raises ConfigError when another process could not import the workflow."""
        self._home = home_of(workflow_class, experiment)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: dict[Attempt, Worker | None] = {}
        self._killed: set[Worker] = set()
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
                if mine and worker.alive and not self._closed:
                    worker.forget_printed()
                    self._idle.append(worker)

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
        number, path = tempfile.mkstemp(prefix="ajet-workflow-")
        os.unlink(path)
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_APPEND)
        self._output = number
        command = [sys.executable, "-u", "-m", "ajet.rollout.isolation.worker", str(theirs.fileno()), str(life)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, home.paths))}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=number,
            stderr=number,
            pass_fds=(theirs.fileno(), life),
            start_new_session=True,
            env=environment,
        )
        theirs.close()
        os.close(life)
        self._connection = Connection(ours.detach())
        self._connection.send(home)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def run(self, attempt: Attempt) -> WorkflowOutput:
        """Serve one attempt until it ends. Raises EpisodeFailed."""
        try:
            self._connection.send((attempt.task, attempt.config))
            while True:
                kind, value = self._connection.recv()
                if kind == "output":
                    return value
                if kind == "failed":
                    raise EpisodeFailed(value)
                attempt.stage = kind
                self._connection.send(_answer(attempt, kind, value))
        except (EOFError, OSError):
            self._end_group(signal.SIGKILL)
            code = self._process.wait()
            raise failed(
                "process_died", f"the workflow's process ended with code {code}\n{self.printed()}".strip()
            ) from None

    def printed(self) -> str:
        """The end of what this attempt wrote to standard output and error."""
        size = os.fstat(self._output).st_size
        return os.pread(self._output, 4 * PRINTED, max(0, size - 4 * PRINTED)).decode(errors="replace")[-PRINTED:]

    def forget_printed(self) -> None:
        """Begin anew for the next attempt."""
        os.ftruncate(self._output, 0)

    def kill(self) -> None:
        """End the process group; does not wait."""
        if self._end_group(signal.SIGTERM):
            threading.Thread(target=self._bury, name="ajet-bury", daemon=True).start()

    def _bury(self) -> None:
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._end_group(signal.SIGKILL)
            self._process.wait()

    def _end_group(self, number: signal.Signals) -> bool:
        """Signal the group. A leader that was not waited for keeps its id, so the id is still its own."""
        if self._process.returncode is not None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True


def _answer(attempt: Attempt, kind: str, value: Any) -> tuple[str, Any]:
    """What the process asks for: its session, or the endpoint of an agent."""
    try:
        if kind == "open":
            attempt.open(value)
            return "ok", None
        assert attempt.session is not None
        return "ok", replace(attempt.session(*value), transport=None)
    except Exception as problem:  # noqa: BLE001 - it is raised in the process that asked
        return "error", problem.failure if isinstance(problem, EpisodeFailed) else repr(problem)


def home_of(workflow_class: type[Any], experiment: Experiment) -> Home:
    """How another process finds the class."""
    paths = tuple(path or str(Path.cwd()) for path in sys.path)
    base = experiment.base
    reference = experiment.ajet.rollout.user_workflow
    name = workflow_class.__qualname__
    if isinstance(reference, str) and reference.replace(":", "->").rpartition("->")[2].strip() == name:
        return Home(reference, base, paths)
    source = inspect.getsourcefile(workflow_class)
    if "." in name or source is None:
        raise ConfigError(
            f"The workflow {name} cannot be imported by another process.",
            where="ajet.rollout.isolation: process",
            expected="a class at the top level of a file",
        )
    if workflow_class.__module__ != "__main__" and sys.modules[workflow_class.__module__].__spec__ is not None:
        return Home(f"{workflow_class.__module__}->{name}", base, paths)
    return Home(f"{Path(source).resolve()}->{name}", base, paths)
