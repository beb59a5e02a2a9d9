"""One process an attempt at a time: the hang of an attempt is killed with its process.

Invariants: one that was killed or died, or that an attempt left changed, is replaced by a new one; a worker ends itself
when this process is gone. Inside, clients reach the gateway over its loopback port. Linux and macOS.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config.programs import program
from ajet.record.processors import usable_cpus
from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import failed
from ajet.rollout.isolation.messages import Home
from ajet.rollout.isolation.pace import Pace, Start
from ajet.rollout.isolation.thread import settle
from ajet.rollout.isolation.worker_handle import Ends, Started, WorkerHandle
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

WORKER = "ajet.rollout.isolation.worker"


class ProcessIsolation:
    """See the module."""

    shared, apart = False, True
    keeps_workers = True
    """Whether a worker that an attempt left as it found it plays another one."""

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> ProcessIsolation:
        """Raises ConfigError when another process could not import the workflow."""
        return cls(experiment, workflow_class, ambient)

    @classmethod
    def require_isolable(cls, experiment: Experiment, workflow_class: type[Any]) -> None:
        """Raise ConfigError if another process could not import the workflow."""
        home_of(workflow_class, experiment, Endpoint("", ""))

    def __init__(self, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> None:
        """Raises ConfigError when another process could not import the workflow."""
        self._home = home_of(workflow_class, experiment, ambient)
        self._lock = threading.Lock()
        self._idle: list[WorkerHandle] = []
        self._busy: dict[Attempt, WorkerHandle | None] = {}
        self._killed: set[WorkerHandle] = set()
        self._said: set[str] = set()
        self._closed = False
        self._pace = Pace.of(usable_cpus())

    @property
    def abandoned(self) -> int:
        """Processes that live on although they were killed."""
        with self._lock:
            self._forget_dead()
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
        """See Isolation."""
        with self._lock:
            worker = self._busy.get(attempt)
        return worker.stands() if worker is not None else ""

    def stop(self, attempt: Attempt) -> None:
        """Kill its process group."""
        with self._lock:
            worker = self._busy.pop(attempt, None)
            if worker is not None:
                self._forget_dead()
                self._killed.add(worker)
        self._pace.look()
        if worker is not None:
            attempt.printed = worker.printed()
            worker.kill()

    def close(self) -> None:
        """Kill all."""
        with self._lock:
            self._closed = True
            workers = [worker for worker in (*self._busy.values(), *self._idle) if worker is not None]
            self._idle, self._busy = [], {}
        self._pace.look()
        for worker in workers:
            worker.kill()

    def _run(self, attempt: Attempt) -> WorkflowOutput:
        worker, start = self._take(attempt)
        try:
            return worker.run(attempt, start.over if start is not None else lambda: None)
        finally:
            if start is not None:
                start.over()
            attempt.printed = attempt.printed or worker.printed()
            with self._lock:
                mine = self._busy.pop(attempt, None) is worker
                usable = self.keeps_workers and worker.alive and not worker.changes
                if mine and usable and not self._closed:
                    worker.forget_printed()
                    self._idle.append(worker)
            self._pace.look()
            if mine and not usable:
                self._retire(worker)

    def _retire(self, worker: WorkerHandle) -> None:
        """Use the worker no more: its next attempt would find what this one left."""
        worker.kill()
        news = [change for change in worker.changes if change not in self._said]
        self._said.update(news)
        if news and self.keeps_workers:
            logger.warning(
                "rollout.isolation process: a workflow left {} changed or running; its process is replaced, so that no "
                "other attempt meets that (each such attempt costs the start of a process)",
                " and ".join(news),
            )

    def _new(self) -> WorkerHandle:
        return WorkerHandle(self._home, start_process)

    def _take(self, attempt: Attempt) -> tuple[WorkerHandle, Start | None]:
        """An idle worker, or a new one with its start, whichever is there first. Raises EpisodeFailed."""
        while self._wants(attempt):
            if (worker := self._free(attempt)) is not None:
                return worker, None
            start = self._pace.turn(lambda: bool(self._idle) or not self._wants(attempt))
            if start is None:
                continue
            try:
                worker = self._new()
            except BaseException:
                start.over()
                raise
            with self._lock:
                if attempt in self._busy and not self._closed:
                    self._busy[attempt] = worker
                    return worker, start
            start.over()
            worker.kill()
        raise failed("stopped", "the episode was stopped before its process began", boundary="ajet")

    def _free(self, attempt: Attempt) -> WorkerHandle | None:
        """One that is idle, for this attempt, if it is still wanted."""
        with self._lock:
            while self._idle and attempt in self._busy:
                worker = self._idle.pop()
                if worker.alive:
                    self._busy[attempt] = worker
                    return worker
                worker.kill()
        return None

    def _forget_dead(self) -> None:
        self._killed = {worker for worker in self._killed if worker.alive}

    def _wants(self, attempt: Attempt) -> bool:
        with self._lock:
            return attempt in self._busy and not self._closed


def start_process(home: Home, ends: Ends) -> Started:
    """Start a worker as a process of this machine."""
    process = subprocess.Popen(
        program(WORKER, str(ends.channel), str(ends.life), unbuffered=True),
        stdin=subprocess.DEVNULL,
        stdout=ends.output,
        stderr=ends.output,
        pass_fds=(ends.channel, ends.life),
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, home.paths))},
    )
    return Started(process)


def home_of(workflow_class: type[Any], experiment: Experiment, ambient: Endpoint) -> Home:
    """The place at which another process finds the class. Raises ConfigError where none can."""
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
            where=f"ajet.rollout.isolation: {experiment.ajet.rollout.isolation}",
            expected="a class at the top level of a file",
        )
    if workflow_class.__module__ != "__main__" and sys.modules[workflow_class.__module__].__spec__ is not None:
        return Home(f"{workflow_class.__module__}->{name}", base, paths, ambient)
    return Home(f"{Path(source).resolve()}->{name}", base, paths, ambient)
