"""The player of a worker with many attempts on one event loop: isolation `loops`.

Invariants: all promises of isolation `loop` hold within this process. Output of an attempt's tasks and threads is sent
as output of the attempt, by a context variable, and printing never blocks. A thread started by user code has no such
context, and the thread's output goes to the real standard output. A stopped attempt is reported as ended when the task
is over, possibly later than the future.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakSet

from loguru import logger

from ajet.config import resolve_reference
from ajet.rollout.attempt import AttemptBase, is_plain_attempt, perform_attempt
from ajet.rollout.failure import classify_exception, make_error
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.messages import WorkerSetup, decode_attempt, decode_settings
from ajet.rollout.isolation.thread import ThreadIsolation
from ajet.rollout.isolation.worker_attempt import WorkerAttempt, encode_end, exit_fork, exit_forks
from ajet.rollout.isolation.worker_channel import NO_ATTEMPT, OutputStream, WorkerChannel
from ajet.rollout.runtime import UserLoop, reduce_collections
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput
from ajet.workflow.ambient import RunEnvironment
from ajet.workflow.function import KEY, as_workflow

if TYPE_CHECKING:
    from ajet.config import Experiment


# One event loop for many attempts: ten thousand episodes cost ten thousand tasks, not threads.
# Invariant: a task that blocks the loop past the episode's timeout delays the episodes on the same loop and no
# later episode. The next attempt gets a new loop. The old loop is closed after the end of its last attempt.
class LoopIsolation:
    """Runs attempts as tasks of one loop. A plain `execute` gets a separate thread."""

    shares_loop, is_remote = True, False

    @classmethod
    def create(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> LoopIsolation:
        """Return the isolation, intended for asynchronous code."""
        return cls()

    def __init__(self) -> None:
        """Start the first event loop, without attempts."""
        import openai.resources.chat.completions  # noqa: F401 - the import takes seconds and would block the loop

        self._lock = threading.Lock()
        self.loops = [_open_loop()]
        self._running_attempts: dict[AttemptBase, tuple[Future[WorkflowOutput], UserLoop]] = {}
        # Plays the attempts whose `execute` is a plain function.
        self._threads = ThreadIsolation()
        self._attempt_tasks: dict[AttemptBase, asyncio.Task[Any]] = {}
        self._stopped_attempts: WeakSet[AttemptBase] = WeakSet()
        """Stopped attempts whose tasks may still run. References are weak: an attempt stopped during its end is never
        removed.
        """

    @property
    def abandoned_count(self) -> int:
        """The number of tasks and threads still running after the stop of their episode."""
        with self._lock:
            return (
                sum(attempt in self._stopped_attempts for attempt in self._attempt_tasks)
                + self._threads.abandoned_count
            )

    def start(self, attempt: AttemptBase) -> Future[WorkflowOutput]:
        """Begin the attempt on the newest loop."""
        if is_plain_attempt(attempt):
            return self._threads.start(attempt)
        with self._lock:
            loop = self.loops[-1]
            future = loop.submit(self._run_attempt(attempt))
            self._running_attempts[attempt] = (future, loop)
        future.add_done_callback(lambda _: self._note_end(attempt))
        return future

    def locate(self, attempt: AttemptBase) -> str:
        """Return the attempt's current line of user code, as `Isolation.locate` does."""
        with self._lock:
            task, running = self._attempt_tasks.get(attempt), self._running_attempts.get(attempt)
        return (
            running[1].locate_task(task) if task is not None and running is not None else self._threads.locate(attempt)
        )

    def stop(self, attempt: AttemptBase) -> None:
        """Cancel the task. The next attempts get a new loop if this loop is blocked."""
        self._threads.stop(attempt)
        with self._lock:
            running = self._running_attempts.get(attempt)
            if running is None:
                return
            future, loop = running
            self._stopped_attempts.add(attempt)
            if loop.is_blocked and loop is self.loops[-1]:
                self.loops.append(_open_loop())
        future.cancel()

    def close(self) -> None:
        """Cancel all running attempts and end the loops."""
        self._threads.close()
        with self._lock:
            loops = list(self.loops)
        for loop in loops:
            loop.close()

    def _note_end(self, attempt: AttemptBase) -> None:
        """Remove an attempt with a finished future, and close the old loops without attempts."""
        with self._lock:
            self._running_attempts.pop(attempt, None)
            unused = [loop for loop in self.loops[:-1] if not self._has_attempts(loop)]
            for loop in unused:
                self.loops.remove(loop)
        for loop in unused:
            loop.close()

    def _has_attempts(self, loop: UserLoop) -> bool:
        """True if an attempt was started on the loop and has not ended, or its task still runs after a stop. The caller
        holds the lock.
        """
        return any(loop_of_attempt is loop for _, loop_of_attempt in self._running_attempts.values()) or any(
            map(loop.owns_task, self._attempt_tasks.values())
        )

    async def _run_attempt(self, attempt: AttemptBase) -> WorkflowOutput:
        """Perform the attempt as a task of this loop, and forget the task at its end, also if it outlives the attempt's
        future.
        """
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._attempt_tasks[attempt] = task
        try:
            return await perform_attempt(attempt)
        finally:
            with self._lock:
                self._attempt_tasks.pop(attempt, None)
                self._stopped_attempts.discard(attempt)
            if attempt not in self._running_attempts:  # the future was done before
                self._note_end(attempt)


def _open_loop() -> UserLoop:
    return UserLoop("ajet-workflows", "execute")


class SharedAttempt(WorkerAttempt):
    """One of the many attempts that this worker plays at the same time."""

    def __init__(self, channel: WorkerChannel, number: int, *more: Any) -> None:
        super().__init__(channel, number, *more)
        self.owner = channel.owner
        """The worker's process id. A fork of the process prints to the real stream."""
        self._output = OutputStream(number, "printed")
        self.has_ended = False
        """True once the attempt's task is over, possibly later than the future."""

    def add_output(self, text: str) -> None:
        """Send output, line by line until CHATTY_CHARS were sent."""
        if self._output.tail.add(text):
            self.flush()

    def flush(self) -> None:
        """Send the rest of the output."""
        self._channel.send_output(self._output)


current_attempt: ContextVar[SharedAttempt | None] = ContextVar("ajet_current_attempt", default=None)
"""The attempt whose code runs in this context. Printed text in the context is the attempt's output."""


class SharedPlayer:
    """Plays many attempts at the same time with the workflow of one setup."""

    def __init__(self, channel: WorkerChannel, setup: WorkerSetup) -> None:
        """Open the worker's event loop. The workflow is imported with the first attempt, whose end then reports a
        failed import.
        """
        self._channel, self._setup = channel, setup
        self._loop = _AttemptLoop(self, channel.owner)
        self._attempts: dict[int, tuple[SharedAttempt, Future[WorkflowOutput]]] = {}
        self.config: Any = None
        self._workflow_class: type[Any] | None = None
        """None before the first successful import."""
        self._ambient = RunEnvironment(setup.ambient)

    def take(self, order: Message) -> None:
        """Start the attempt of a message without waiting for its end, or cancel it.

        Args:
            order: A message `attempt` or `stop` from the rollout.
        """
        if order.kind == "attempt":
            self._begin_attempt(order.about, order.body)
        elif (running := self._attempts.get(order.about)) is not None:
            self._loop.stop(running[0])

    def locate(self, number: int) -> str:
        """Return the current line of user code of the numbered attempt, or ""."""
        running = self._attempts.get(number)
        return "" if running is None else self._loop.locate(running[0])

    def close_resources(self) -> Sequence[threading.Thread]:
        """Start to close the attempts' resources. Return the closing threads."""
        unclosed = [attempt.resources for attempt, _ in tuple(self._attempts.values()) if attempt.resources.holds]
        return [resources.close_in_thread() for resources in unclosed]

    def note_task_end(self, attempt: SharedAttempt) -> None:
        """Report the end of an attempt whose future was cancelled before its task ended."""
        attempt.has_ended = True
        running = self._attempts.get(attempt.number)
        if running is not None and running[1].cancelled():
            self._report_end(*running)

    def _begin_attempt(self, number: int, body: Any) -> None:
        """Start an attempt on the worker's loop. If that fails, send the failure as the attempt's end."""
        self._channel.begin(number)
        attempt: SharedAttempt | None = None
        try:
            self.config = decode_settings(body) or self.config  # sent once, and stored even if this attempt fails
            task, _, started = decode_attempt(body)
            if self._workflow_class is None:
                setup = self._setup
                self._workflow_class = resolve_reference(setup.reference, base=setup.base, key=KEY, convert=as_workflow)
            attempt = SharedAttempt(self._channel, number, self._workflow_class, task, self.config, started)
            future = self._loop.start(attempt)
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs: the imported module
            self._send_end(number, attempt, classify_exception(problem, "construct"))
            return
        self._attempts[number] = attempt, future
        future.add_done_callback(lambda done: self._report_end(attempt, done))

    def _report_end(self, attempt: SharedAttempt, future: Future[WorkflowOutput]) -> None:
        """Report the attempt's end. A cancelled future is no end while the task still runs."""
        if future.cancelled():
            if attempt.has_ended:
                self._send_end(
                    attempt.number, attempt, make_error("stopped", "it was stopped", boundary="ajet").failure
                )
            return
        problem = future.exception()
        if os.getpid() != self._channel.owner:
            exit_fork(problem)
        outcome = future.result() if problem is None else classify_exception(problem, attempt.stage, attempt.task.task)
        self._send_end(attempt.number, attempt, outcome)

    def _send_end(self, number: int, attempt: SharedAttempt | None, outcome: WorkflowOutput | Failure) -> None:
        """Send the attempt's remaining output and its end to the rollout. `attempt` is None if it could
        not be created.
        """
        self._attempts.pop(number, None)
        if attempt is not None:
            attempt.flush()
        self._channel.end(number, encode_end(outcome, []))


class _AttemptThreads(ThreadIsolation):
    """Threads of attempts whose `execute` is a plain function."""

    def _run_attempt(self, attempt: AttemptBase, *more: Any) -> None:
        """Run the attempt as the base class does, with its printed text assigned to it."""
        assert isinstance(attempt, SharedAttempt)
        current_attempt.set(attempt)
        super()._run_attempt(attempt, *more)


class _AttemptLoop(LoopIsolation):
    """The event loop of this worker, which calls the player after a task's end."""

    def __init__(self, player: SharedPlayer, owner: int) -> None:
        super().__init__()
        self._threads = _AttemptThreads()
        self._player, self._owner = player, owner

    async def _run_attempt(self, attempt: AttemptBase) -> WorkflowOutput:
        """Run the attempt as the base class does, with its printed text assigned to it, and tell the player when its
        task has ended.
        """
        assert isinstance(attempt, SharedAttempt)
        current_attempt.set(attempt)
        try:
            with exit_forks(self._owner):
                return await super()._run_attempt(attempt)
        finally:
            self._player.note_task_end(attempt)


class AttemptOutput(io.TextIOBase):
    """Standard output or error: output of attempts is sent to the rollout, other output to the real stream."""

    def __init__(self, real: TextIO) -> None:
        self._original_stream = real
        self.buffer = _BinaryOutput(self)

    def write(self, text: Any) -> int:
        """Send or write the text. Raises TypeError at once for other values, as a real stream does."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        attempt = current_attempt.get()
        if attempt is None or os.getpid() != attempt.owner:
            return self._original_stream.write(text)
        attempt.add_output(text)
        return len(text)

    def flush(self) -> None:
        """Flush the real stream. Output of attempts is flushed by itself."""
        self._original_stream.flush()

    def fileno(self) -> int:
        """Return the descriptor of the real stream."""
        return self._original_stream.fileno()

    def isatty(self) -> bool:
        """Return False: the real stream is a pipe."""
        return False

    def writable(self) -> bool:
        """Return True, as standard output does."""
        return True

    def close(self) -> None:
        """Do nothing: other attempts use the stream."""

    def reconfigure(self, **_: Any) -> None:
        """Do nothing: output is sent as text, without an encoding."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the real stream."""
        return self._original_stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The error handling of the real stream."""
        return self._original_stream.errors


class _BinaryOutput(io.BufferedIOBase):
    """The `buffer` of an `AttemptOutput`, for code that writes bytes."""

    def __init__(self, output: AttemptOutput) -> None:
        self._output = output

    def write(self, data: Any) -> int:
        """Write the bytes as UTF-8 text."""
        raw = bytes(data)
        self._output.write(raw.decode("utf-8", "replace"))
        return len(raw)

    def flush(self) -> None:
        """Flush the text stream of this buffer."""
        self._output.flush()

    def writable(self) -> bool:
        """Return True, as standard output does."""
        return True


@contextmanager
def open_shared_player(channel: WorkerChannel, setup: WorkerSetup) -> Iterator[SharedPlayer]:
    """Yield a player, and send the output of attempts to the rollout.

    Log lines of an attempt are part of the attempt's output. A warning outside of attempts is sent for the log of the
    run.
    """
    stream = OutputStream(NO_ATTEMPT, "warning")

    def warn(text: str) -> None:
        if stream.tail.add(text):
            channel.send_output(stream)

    _replace_output()
    logger.remove()
    logger.add(sys.stderr)
    logger.add(warn, level="WARNING", format="{message}", filter=lambda _: current_attempt.get() is None)
    with reduce_collections():
        yield SharedPlayer(channel, setup)


def _replace_output() -> None:
    """Send what attempts print to the rollout. A function of its own, because type checkers then treat `sys.stderr` as
    a text stream.
    """
    sys.stdout, sys.stderr = AttemptOutput(sys.stdout), AttemptOutput(sys.stderr)
