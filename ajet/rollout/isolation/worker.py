"""The program of a worker, for the isolations `process`, `sandbox` and `loops`.

    python -m ajet.rollout.isolation.worker CHANNEL CONTROL

The arguments are descriptors of two sockets: the channel, and the control socket, which closes with the parent process.
Invariants: the worker serves until the channel closes. When the parent is gone, for any reason and at any time, the
worker closes its attempts' resources and then kills its descendants and itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from ajet.config import resolve_reference
from ajet.environment.family import adopt_orphans, end_descendants
from ajet.rollout.attempt import is_plain_attempt, perform_attempt, perform_plain_attempt
from ajet.rollout.failure import classify_exception
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.messages import CLOSED, GRACE, ID_BYTES, LOCATE, WorkerSetup, decode_attempt, decode_setup
from ajet.rollout.isolation.worker_attempt import WorkerAttempt, encode_end, exit_forks
from ajet.rollout.isolation.worker_channel import WorkerChannel
from ajet.rollout.runtime import DaemonThreads, locate_code
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import enter_attempt
from ajet.workflow.function import KEY, as_workflow

PARENT_DEATH_SIGNAL = 1
"""The value of PR_SET_PDEATHSIG in <sys/prctl.h>."""


class Player(Protocol):
    """Plays the attempts of this worker: `SinglePlayer` or `SharedPlayer`."""

    def take(self, order: Message) -> None:
        """Carry out a message `attempt` or `stop` of the rollout, in the main thread."""
        ...

    def locate(self, number: int) -> str:
        """Return the current line of user code of the numbered attempt, or ""."""
        ...

    def close_resources(self) -> Sequence[threading.Thread]:
        """Start to close the attempts' resources. Closing may hang. Return the closing threads."""
        ...


def main() -> None:
    """Serve the rollout until the rollout is gone."""
    channel = WorkerChannel(int(sys.argv[1]))
    control, parent = int(sys.argv[2]), os.getppid()
    os.set_inheritable(control, False)
    adopt_orphans()
    wake_when_alone()
    with _open_player(channel, decode_setup(channel.receive().body)) as player:
        channel.start_reading()
        ending = threading.Thread(target=_serve_control, args=(control, parent, player), daemon=True)
        ending.start()
        with suppress(EOFError, ConnectionError):
            while True:
                player.take(channel.next_order())
        ending.join()  # a return would end the process before resources are closed and children killed


@contextmanager
def _open_player(channel: WorkerChannel, setup: WorkerSetup) -> Iterator[Player]:
    """Yield the worker's player: for many attempts on one loop, or for one attempt at a time."""
    if setup.shared:
        from ajet.rollout.isolation.shared_player import open_shared_player

        with open_shared_player(channel, setup) as player:
            yield player
    else:
        yield SinglePlayer(channel, setup)


def _serve_control(control: int, parent: int, player: Player) -> None:
    """Answer LOCATE requests until CLOSE or the end of the parent. Then close the attempts' resources.

    After CLOSE this process replies CLOSED and stops until it is killed. If the parent is gone, the process kills its
    descendants and itself.
    """
    while (received := os.read(control, 1)) == LOCATE:
        number = int.from_bytes(os.read(control, ID_BYTES), "big")
        with suppress(OSError):  # the other process is gone: the next read returns no byte
            os.write(control, f"{player.locate(number)}\n".encode(errors="replace"))
    deadline = time.monotonic() + GRACE
    for closing in player.close_resources():
        closing.join(max(0.0, deadline - time.monotonic()))
    if received:
        with suppress(OSError):
            wake_every_second()
            os.write(control, CLOSED)
            _stop_until_orphaned(parent)
    end_descendants(psutil.Process())
    os.killpg(os.getpgrp(), signal.SIGKILL)


def wake_when_alone() -> None:
    """Continue this process when the parent ends (Linux).

    The parent stops this process before killing it. The parent may be killed in between, by a second Ctrl-C or a
    signal.
    """
    if sys.platform.startswith("linux"):
        signal.signal(signal.SIGCONT, lambda *_: None)  # without a handler the timer's signal is dropped
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


class _SignalEvent(ctypes.Structure):
    """`struct sigevent` of <signal.h> on Linux. `kind` 0 (SIGEV_SIGNAL) sends the signal `signal`."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("rest", ctypes.c_int * 12),
    )


def wake_every_second() -> None:
    """Have a system timer send SIGCONT each second (Linux).

    The signal of the parent's end, or of the end of its threads, may come just before this process stops. Without the
    timer the process would stop for ever.
    """
    if not sys.platform.startswith("linux"):
        return
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = _SignalEvent(None, signal.SIGCONT, 0)
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        libc.timer_settime(timer, 0, (ctypes.c_long * 4)(1, 0, 1, 0), None)  # interval, and first time


def _stop_until_orphaned(parent: int) -> None:
    """Stop until the parent is gone. The waking signal also comes when only the parent's thread ends."""
    while os.getppid() == parent:
        os.kill(os.getpid(), signal.SIGSTOP)


# The player of a worker with one attempt at a time, in the main thread: isolations `process` and `sandbox`.
# Invariant: the end of each attempt lists the changes left in this process: folder, environment, threads, children,
# standard output. The rollout replaces a changed worker. Threads and children get SETTLE_S to end by themselves.
SETTLE_S = 0.3
"""Seconds for threads and children to end after an attempt."""
MAX_NAMED = 8
"""Maximum number of variables, threads or children listed in one description."""


class SinglePlayer:
    """Plays attempts one after another."""

    def __init__(self, channel: WorkerChannel, setup: WorkerSetup) -> None:
        """Prepare the player and set the ambient endpoint in this process's environment, for code that runs between
        attempts.
        """
        self._channel, self._setup = channel, setup
        self._attempt: WorkerAttempt | None = None
        """The current attempt, or the last attempt."""
        self._task: asyncio.Task[Any] | None = None
        """The attempt's task, if the attempt's code is asynchronous."""
        enter_attempt(setup.ambient)

    def take(self, order: Message) -> None:
        """Play the requested attempt and send its result to the parent process.

        The result includes the changes that the attempt left in this process.
        """
        self._channel.begin(order.about)
        state_before, outcome = self._play_attempt(order.about, *decode_attempt(order.body))
        with suppress(OSError, ValueError):  # user code may have closed the stream
            sys.stdout.flush()
        enter_attempt(self._setup.ambient)
        self._channel.end(
            order.about, encode_end(outcome, state_before.find_changes() if state_before is not None else [])
        )

    def locate(self, number: int) -> str:
        """Return the current line of user code, or "". The number is ignored: there is only one attempt at a time."""
        return locate_code(threading.main_thread().ident, self._task)

    def close_resources(self) -> Sequence[threading.Thread]:
        """Start to close the current attempt's resources. Return the closing threads."""
        return [] if self._attempt is None else [self._attempt.resources.close_in_thread()]

    def _play_attempt(
        self, number: int, task: WorkflowTask, config: Any, started_at: float
    ) -> tuple[ProcessState | None, WorkflowOutput | Failure]:
        """Return the process state before the attempt (None if the import failed), and the output or failure."""
        attempt: WorkerAttempt | None = None
        state_before: ProcessState | None = None
        owner = self._channel.owner
        try:
            with exit_forks(owner):
                workflow_class = resolve_reference(
                    self._setup.reference, base=self._setup.base, key=KEY, convert=as_workflow
                )
                from ajet.workflow import tuner  # noqa: F401 - the import must not count as a change of the attempt

                state_before = ProcessState.capture()
                attempt = WorkerAttempt(
                    self._channel, number, workflow_class, task, config, started_at, enter=enter_attempt
                )
                self._attempt, self._task = attempt, None
                if is_plain_attempt(attempt):
                    return state_before, perform_plain_attempt(attempt)
                return state_before, asyncio.run(self._perform_on_loop(attempt))
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs
            return state_before, classify_exception(problem, attempt.stage if attempt else "construct", task.task)

    async def _perform_on_loop(self, attempt: WorkerAttempt) -> WorkflowOutput:
        """Perform an async `execute` on the running loop. A process forked by user code ends here, within the loop's
        task.
        """
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        self._task = asyncio.current_task()
        with exit_forks(self._channel.owner):
            return await perform_attempt(attempt)


@dataclass(frozen=True)
class ProcessState:
    """The part of this process's state, at one moment, that an attempt could pass on to the next."""

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
        deadline = time.monotonic() + SETTLE_S
        while (changes := self._describe_changes()) and not self._has_lasting_changes and time.monotonic() < deadline:
            time.sleep(0.01)
        return changes

    @property
    def _has_lasting_changes(self) -> bool:
        """True if a change remains that cannot end by itself."""
        return _find_folder() != self.folder or os.environ != self.environment or _find_output_files() != self.output

    def _describe_changes(self) -> list[str]:
        """Return a text for each difference to the captured state: folder, environment, threads, children, output."""
        changes = []
        if _find_folder() != self.folder:
            changes.append(f"the working directory ({_find_folder() or 'deleted'})")
        environment = dict(os.environ)
        names = sorted(
            name for name in {*environment, *self.environment} if environment.get(name) != self.environment.get(name)
        )
        if names:
            changes.append(f"the environment ({_join_names(names)})")
        threads = [thread.name for thread in threading.enumerate() if thread not in self.threads]
        if threads:
            changes.append(f"threads ({_join_names(threads)})")
        children = [str(pid) for pid in sorted(set(_find_children()) - self.children)]
        if children:
            changes.append(f"processes ({_join_names(children)})")
        if _find_output_files() != self.output:
            changes.append("standard output")
        return changes


def _find_folder() -> str | None:
    """Return the working directory, or None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _find_output_files() -> tuple[tuple[int, int] | None, ...]:
    """Return device and inode of standard output and error, or None for a closed stream."""
    identities: list[tuple[int, int] | None] = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            status = os.fstat(number)
            identities.append(None if stream is None or stream.closed else (status.st_dev, status.st_ino))
        except OSError:
            identities.append(None)
    return tuple(identities)


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
    """Return the first MAX_NAMED names, separated by commas, and the number of the others."""
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


if __name__ == "__main__":
    main()
