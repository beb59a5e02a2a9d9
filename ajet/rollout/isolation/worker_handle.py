"""The rollout's handle of a worker and of the attempts that it plays: one at a time, or many on one event loop.

Invariants: an attempt that was begun ends once, by the worker's message or by the end of its process. What a worker
sends is believed only within its size and form, and only for attempts that it plays; a worker that sends anything else
is killed. Only threads of the handle wait for the process. Where attempts share the worker (`Home.shared`), three
things differ: an attempt that is stopped is cancelled, and the process is replaced only if the attempt goes on; nobody
knows which attempt ended the process, so that each of them may be played again; a message that cannot be read fails its
attempt alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from loguru import logger

from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError, classify_exception, keep_tail, make_error
from ajet.rollout.isolation.channel import Message, encoded
from ajet.rollout.isolation.messages import (
    GRACE,
    Ended,
    Home,
    decode_ended,
    decode_printed,
    decode_question,
    encode_answer,
    encode_failure,
    pack_attempt,
)
from ajet.rollout.isolation.worker_process import StartWorker, WorkerProcess
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import BoundaryError
from ajet.schema.task import WorkflowOutput

START_S = 5.0
"""Seconds after which a start no longer counts: a worker may wait for something else than a processor."""
UNRESPONSIVE_S = 0.25
"""Seconds without a reply to LOCATE after which a worker is not asked again."""
_MOST_WARNINGS = 100


@dataclass(slots=True, eq=False)
class _PlayedAttempt:
    """An attempt that the worker plays."""

    number: int
    attempt: Attempt
    future: Future[WorkflowOutput]
    printed: str = ""
    dropped: int = 0
    """Characters printed before `printed`."""

    def add_printed(self, text: str, cut: int) -> None:
        joined = self.printed + text
        self.printed = joined[-OUTPUT_CHARS:]
        self.dropped += cut + len(joined) - len(self.printed)
        self.attempt.printed = keep_tail(self.printed, OUTPUT_CHARS, dropped=self.dropped)


class WorkerHandle:
    """A worker, which a thread of the handle starts. Thread-safe; no method but `locate` waits for the worker."""

    def __init__(
        self,
        home: Home,
        start: StartWorker,
        *,
        on_change: Callable[[WorkerHandle], None] = lambda _: None,
        warned: set[str] | None = None,
    ) -> None:
        """
        Args:
            on_change: Called at the worker's first message, before the future of an attempt that ended is set, and
                when the worker is over.
            warned: Warnings of workers like it that were logged already.
        """
        self._home, self._start, self._on_change = home, start, on_change
        self._warned = set[str]() if warned is None else warned
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._playing: dict[int, _PlayedAttempt] = {}
        self._numbers: dict[Attempt, int] = {}
        self._last = 0
        self._stopped: dict[int, float] = {}
        """Attempts that were stopped and have not ended, with when that was, the oldest first."""
        self._watches_stopped = False
        self._is_unresponsive = False
        """True if it did not reply to LOCATE in time. Then it gets no attempts once that one is stopped: they would
        wait as long."""
        self._created, self._has_spoken = time.monotonic(), False
        self.is_accepting = True
        """True while it is given attempts."""
        self.is_over = False
        """True once its process has ended, or could not be started."""
        self.changes: list[str] = []
        """Descriptions of what its last attempt left changed in the process."""
        self._outgoing: SimpleQueue[_PlayedAttempt | int | None] = SimpleQueue()
        """Attempts to begin, numbers of those to cancel; None: the end."""
        threading.Thread(target=self._run, name="ajet-worker", daemon=True).start()

    @property
    def playing(self) -> int:
        """The number of attempts that it plays, without those that were stopped."""
        return len(self._playing)

    @property
    def abandoned(self) -> int:
        """The number of attempts that were stopped and have not ended."""
        return len(self._stopped)

    @property
    def start_left(self) -> float:
        """Seconds for which its start still counts, at most; 0 once it has spoken, and without an attempt."""
        is_starting = self.is_accepting and not self._has_spoken and bool(self._playing)
        return max(0.0, self._created + START_S - time.monotonic()) if is_starting else 0.0

    @property
    def is_alive(self) -> bool:
        """True while its process runs."""
        process = self._process
        return process is not None and process.is_alive

    def begin(self, attempt: Attempt, future: Future[WorkflowOutput]) -> bool:
        """Have the attempt played, and its outcome put into the future; False if it accepts no more."""
        with self._lock:
            if not self.is_accepting:
                return False
            self._last += 1
            played = self._playing[self._last] = _PlayedAttempt(self._last, attempt, future)
            self._numbers[attempt] = self._last
            self._outgoing.put(played)
        return True

    def locate(self, attempt: Attempt) -> str:
        """Return the line of user code that the attempt is at, or ""."""
        with self._lock:
            number, process = self._numbers.get(attempt), self._process
        if number is None or process is None or self._is_unresponsive:
            return ""
        began = time.monotonic()
        found = process.locate(number)
        self._is_unresponsive = not found and time.monotonic() - began > UNRESPONSIVE_S
        return found

    def stop(self, attempt: Attempt) -> None:
        """Cancel the attempt, or kill the worker that plays it alone. Its future stays open."""
        with self._lock:
            number = self._numbers.pop(attempt, None)
            if number is None or self._playing.pop(number, None) is None:
                return
            self._stopped[number] = time.monotonic()
            if self._home.shared:
                self._outgoing.put(number)
                self.is_accepting = self.is_accepting and not self._is_unresponsive
                if not self._watches_stopped:
                    self._watches_stopped = True
                    self._check_stopped_later(GRACE)
        if not self._home.shared:
            attempt.printed = self.output()
            self.close()

    def close(self) -> None:
        """Kill the worker, with all that descends from it."""
        with self._lock:
            self.is_accepting, process = False, self._process
        if process is not None:
            process.kill()

    def output(self) -> str:
        """Return the end of what was written to the worker's standard output and error."""
        process = self._process
        return process.output() if process is not None else ""

    def forget_output(self) -> None:
        """Drop that output, for the next attempt."""
        if self._process is not None:
            self._process.forget_output()

    def _run(self) -> None:
        """Start the process, and send it what is queued."""
        try:
            process = WorkerProcess(self._home, self._start)
            threading.Thread(target=self._receive, args=(process,), name="ajet-worker-reads", daemon=True).start()
        except Exception as problem:  # noqa: BLE001 - raised where the attempts are waited for
            self._fail_start(problem)
            return
        with self._lock:
            self._process, is_wanted = process, self.is_accepting
        if not is_wanted:
            process.kill()
        settings: object = None
        while (item := self._outgoing.get()) is not None:
            with suppress(OSError):  # it is gone: the thread that reads finds that
                if isinstance(item, int):
                    process.send(item, "stop", encoded(None))
                elif self._send_attempt(process, item, with_settings=item.attempt.config is not settings):
                    settings = item.attempt.config if self._home.shared else None

    def _send_attempt(self, process: WorkerProcess, played: _PlayedAttempt, *, with_settings: bool) -> bool:
        """Have the worker begin an attempt. with_settings: it does not have this configuration. True if it was sent."""
        with self._lock:
            if played.number not in self._playing:
                if self._home.shared:
                    self._stopped.pop(played.number, None)  # before it began: there is no end to wait for
                return False
        try:
            attempt = played.attempt
            body = pack_attempt(attempt.task, attempt.config if with_settings else None, attempt.began)
        except EpisodeError as problem:
            self._finish(played.number, problem)
            return False
        process.send(played.number, "attempt", body)
        return True

    def _receive(self, process: WorkerProcess) -> None:
        """Handle the worker's messages until it is gone."""
        try:
            while True:
                message = process.receive()
                if not self._has_spoken:
                    self._has_spoken = True
                    self._on_change(self)
                self._handle(process, message)
        except (ValueError, EOFError, OSError) as problem:
            with self._lock:
                self.is_accepting = False
            self._fail_all(process.explain_death(problem))

    def _handle(self, process: WorkerProcess, message: Message) -> None:
        """Raises ValueError for a message that such a worker does not send."""
        if message.kind == "warning" and self._home.shared:
            self._log_warning(*decode_printed(message.body))
            return
        with self._lock:
            played, is_stopped = self._playing.get(message.about), message.about in self._stopped
        if played is None and not is_stopped:
            raise ValueError("it spoke of an attempt that it does not play")
        if message.kind == "ended":
            ended = self._read_end(message)
            outcome = ended.outcome
            self._finish(message.about, EpisodeError(outcome) if isinstance(outcome, Failure) else outcome, ended.left)
        elif message.kind == "printed" and self._home.shared:
            printed = decode_printed(message.body)
            if played is not None:
                played.add_printed(*printed)
        elif played is None:
            over = make_error("stopped", "its episode is over", boundary="ajet")
            process.send(message.about, "failed", encode_failure(over.failure, []))
        else:
            self._answer(process, played.attempt, message)

    def _read_end(self, message: Message) -> Ended:
        try:
            return decode_ended(message.body)
        except ValueError as problem:
            if not self._home.shared:
                raise
            why = f"the output cannot be read in the rollout's process: {problem}"
            return Ended(make_error("wrong_type", why).failure, [])

    def _answer(self, process: WorkerProcess, attempt: Attempt, message: Message) -> None:
        """Reply to a request."""
        try:
            request = decode_question(message.kind, message.body)
            if message.kind == "open" and attempt.session is not None:
                raise ValueError("it opened its session twice")
        except ValueError as problem:
            if not self._home.shared:
                raise
            process.send(message.about, "error", encoded(f"what was asked cannot be read: {problem}"))
            return
        try:
            answer = _ask_attempt(attempt, message.kind, request)
        except Exception as problem:  # noqa: BLE001 - it is raised in the process that asked
            if isinstance(problem, EpisodeError | BoundaryError):
                process.send(message.about, "failed", encode_failure(classify_exception(problem), []))
            else:
                process.send(message.about, "error", encoded(repr(problem)))
            return
        if isinstance(answer, Endpoint) and process.base_url:
            answer = replace(answer, base_url=process.base_url)
        process.send(message.about, "ok", encode_answer(message.kind, answer))

    def _log_warning(self, text: str, cut: int) -> None:
        text = keep_tail(text, OUTPUT_CHARS, dropped=cut).strip()
        if text not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(text)
            logger.warning("a process of rollout.isolation loops: {}", text)

    def _check_stopped_later(self, seconds: float) -> None:
        """Not in the thread that sends: a process that stands still keeps that one waiting."""
        timer = threading.Timer(seconds, self._check_stopped)
        timer.daemon = True
        timer.start()

    def _check_stopped(self) -> None:
        """Accept no more attempts if one goes on GRACE after it was stopped."""
        with self._lock:
            since = next(iter(self._stopped.values()), None) if self.is_accepting else None
            left = None if since is None else since + GRACE - time.monotonic()
            self._watches_stopped = left is not None and left > 0
            if left is not None and left <= 0:
                self.is_accepting = False
        if left is not None and left > 0:
            self._check_stopped_later(left)
        self._close_if_done()

    def _finish(self, number: int, outcome: WorkflowOutput | EpisodeError, left: list[str] | None = None) -> None:
        """Set the outcome of an attempt. `left`: what it left changed."""
        with self._lock:
            self._stopped.pop(number, None)
            played = self._playing.pop(number, None)
            if played is not None:
                self._numbers.pop(played.attempt, None)
                self.changes = left or []
        if played is not None:
            self._store_output(played)
            self._on_change(self)
            _set_outcome(played.future, outcome)
        self._close_if_done()

    def _store_output(self, played: _PlayedAttempt) -> None:
        if not self._home.shared:
            played.attempt.printed = played.attempt.printed or self.output()

    def _close_if_done(self) -> None:
        """Kill the worker once it accepts no more attempts and plays none."""
        with self._lock:
            process = None if self.is_accepting or self._playing else self._process
        if process is not None and process.is_alive:
            process.kill()

    def _fail_start(self, problem: Exception) -> None:
        if isinstance(problem, OSError | RuntimeError):  # no more processes, descriptors or threads
            self._fail_all(f"the process that was to play it could not be started: {problem}", retryable=True)
            return
        for played in self._end():
            _set_outcome(played.future, problem)

    def _fail_all(self, why: str, *, retryable: bool | None = None) -> None:
        """Fail all attempts: the process is gone. retryable: None if that depends on who may have ended it."""
        lost = self._end()
        others = f" (it played {len(lost)} episodes)" if len(lost) > 1 else ""
        head, _, output = why.partition("\n")
        nobodys = self._home.shared if retryable is None else retryable
        for played in lost:
            message = "\n".join(filter(None, (head + others, played.printed.strip(), output)))
            if nobodys:
                problem = EpisodeError(Failure("ajet", "process_died", message, retryable=True))
            else:
                problem = make_error("process_died", message)
            _set_outcome(played.future, problem)

    def _end(self) -> list[_PlayedAttempt]:
        """Note that the process is gone; return the attempts that it played."""
        with self._lock:
            self.is_accepting, self.is_over = False, True
            lost = list(self._playing.values())
            self._playing, self._numbers, self._stopped = {}, {}, {}
        self._outgoing.put(None)
        for played in lost:
            self._store_output(played)
        self._on_change(self)
        return lost


def _ask_attempt(attempt: Attempt, kind: str, request: Any) -> Any:
    """Return the answer to a request."""
    if kind == "open":
        attempt.open(request)
        return None
    assert attempt.session is not None
    if kind == "context_full":
        return attempt.session.context_full()
    if kind == "replay":
        assert attempt.replay is not None
        return attempt.replay(*request)
    if kind == "replayed_tools":
        assert attempt.replay is not None
        return attempt.replay.tools()
    if kind == "pin":
        return attempt.pin(request)
    if kind == "tool_used":
        attempt.session.tool_used(request)
        return None
    return attempt.session(*request)


def _set_outcome(future: Future[WorkflowOutput], outcome: WorkflowOutput | Exception) -> None:
    if not future.set_running_or_notify_cancel():  # the rollout waits for it no more
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
