"""The player of a worker with one attempt at a time, in the main thread: isolations `process` and `sandbox`.

Invariant: the end of each attempt lists the changes left in this process: folder, environment, threads, children,
standard output. The rollout replaces a changed worker. Threads and children get SETTLE_S to end by themselves.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from ajet.config import resolve_reference
from ajet.rollout.attempt import is_plain_attempt, perform_attempt, perform_plain_attempt
from ajet.rollout.failure import classify_exception
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.messages import WorkerSetup, decode_attempt
from ajet.rollout.isolation.worker_attempt import WorkerAttempt, encode_end, exit_forks
from ajet.rollout.isolation.worker_channel import WorkerChannel
from ajet.rollout.runtime import DaemonThreads, locate_code
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import enter_attempt
from ajet.workflow.function import KEY, as_workflow

SETTLE_S = 0.3
"""Seconds for threads and children to end after an attempt."""
MAX_NAMED = 8
"""Maximum number of variables, threads or children listed in one description."""


class SinglePlayer:
    """Plays attempts one after another."""

    def __init__(self, channel: WorkerChannel, setup: WorkerSetup) -> None:
        self._channel, self._setup = channel, setup
        self._attempt: WorkerAttempt | None = None
        """The current attempt, or the last attempt."""
        self._task: asyncio.Task[Any] | None = None
        """The attempt's task, if the attempt's code is asynchronous."""
        enter_attempt(setup.ambient)

    def take(self, order: Message) -> None:
        """Play the attempt to the end and report the end."""
        self._channel.begin(order.about)
        before, outcome = self._play_attempt(order.about, *decode_attempt(order.body))
        with suppress(OSError, ValueError):  # user code may have closed the stream
            sys.stdout.flush()
        enter_attempt(self._setup.ambient)
        self._channel.end(order.about, encode_end(outcome, before.find_changes() if before is not None else []))

    def locate(self, number: int) -> str:
        """Return the current line of user code of the attempt, or ""."""
        return locate_code(threading.main_thread().ident, self._task)

    def close_resources(self) -> Sequence[threading.Thread]:
        """Start to close the current attempt's resources. Return the closing threads."""
        return [] if self._attempt is None else [self._attempt.resources.close_in_thread()]

    def _play_attempt(
        self, number: int, task: WorkflowTask, config: Any, began: float
    ) -> tuple[ProcessState | None, WorkflowOutput | Failure]:
        """Return the process state before the attempt (None if the import failed), and the outcome."""
        attempt: WorkerAttempt | None = None
        before: ProcessState | None = None
        owner = self._channel.owner
        try:
            with exit_forks(owner):
                workflow_class = resolve_reference(
                    self._setup.reference, base=self._setup.base, what=KEY, convert=as_workflow
                )
                from ajet.workflow import tuner  # noqa: F401 - the import must not count as a change of the attempt

                before = ProcessState.capture()
                attempt = WorkerAttempt(self._channel, number, workflow_class, task, config, began, enter=enter_attempt)
                self._attempt, self._task = attempt, None
                if is_plain_attempt(attempt):
                    return before, perform_plain_attempt(attempt)
                return before, asyncio.run(self._perform_on_loop(attempt))
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs
            return before, classify_exception(problem, attempt.stage if attempt else "construct", task.task)

    async def _perform_on_loop(self, attempt: WorkerAttempt) -> WorkflowOutput:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        self._task = asyncio.current_task()
        with exit_forks(self._channel.owner):
            return await perform_attempt(attempt)


@dataclass(frozen=True)
class ProcessState:
    """The process state that an attempt could pass on to the next, at one moment."""

    folder: str | None
    environment: dict[str, str]
    threads: frozenset[threading.Thread]
    children: frozenset[int]
    output: tuple[tuple[int, int] | None, ...]

    @classmethod
    def capture(cls) -> ProcessState:
        """Return the current state of this process."""
        return cls(
            _find_folder(), dict(os.environ), frozenset(threading.enumerate()), frozenset(_find_children()),
            _find_output_files(),
        )  # fmt: skip

    def find_changes(self) -> list[str]:
        """Return descriptions of changes since the capture. Waits for the end of threads and children."""
        until = time.monotonic() + SETTLE_S
        while (changes := self._describe_changes()) and not self._has_lasting_changes and time.monotonic() < until:
            time.sleep(0.01)
        return changes

    @property
    def _has_lasting_changes(self) -> bool:
        """True if a change remains that cannot end by itself."""
        return _find_folder() != self.folder or os.environ != self.environment or _find_output_files() != self.output

    def _describe_changes(self) -> list[str]:
        found = []
        if _find_folder() != self.folder:
            found.append(f"the working directory ({_find_folder() or 'deleted'})")
        now = dict(os.environ)
        names = sorted(name for name in {*now, *self.environment} if now.get(name) != self.environment.get(name))
        if names:
            found.append(f"the environment ({_join_names(names)})")
        threads = [thread.name for thread in threading.enumerate() if thread not in self.threads]
        if threads:
            found.append(f"threads ({_join_names(threads)})")
        children = [str(pid) for pid in sorted(set(_find_children()) - self.children)]
        if children:
            found.append(f"processes ({_join_names(children)})")
        if _find_output_files() != self.output:
            found.append("standard output")
        return found


def _find_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _find_output_files() -> tuple[tuple[int, int] | None, ...]:
    """Return device and inode of standard output and error, or None for a closed stream."""
    found: list[tuple[int, int] | None] = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            about = os.fstat(number)
            found.append(None if stream is None or stream.closed else (about.st_dev, about.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _find_children() -> list[int]:
    """Return the living children of this process, and reap ended children."""
    living = []
    for child in psutil.Process().children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                living.append(child.pid)
                continue
            os.waitpid(child.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return living


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
