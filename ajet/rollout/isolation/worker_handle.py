"""The rollout's handle of a worker and of its attempts: one at a time, or many on one event loop.

Invariants: a started attempt ends once, by the worker's message or by the end of the process. A message is accepted
only within the limits of size and form, and only for attempts played by the worker. After any other message the worker
is killed. Only threads of the handle wait for the process. If attempts share the worker (`WorkerSetup.shared`), three
things differ. A stopped attempt is cancelled, and the process is replaced only if the attempt does not end. Any attempt
may have ended the process, and all of them may be played again. An unreadable message fails only its own attempt.
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

from ajet.rollout.attempt import LocalAttempt
from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError, classify_exception, keep_tail, make_error
from ajet.rollout.isolation.channel import Message, encode_value
from ajet.rollout.isolation.messages import (
    GRACE,
    AttemptEnd,
    WorkerSetup,
    decode_end,
    decode_printed,
    decode_request,
    encode_failure,
    encode_reply,
    pack_attempt,
)
from ajet.rollout.isolation.worker_process import StartWorker, WorkerProcess
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import BoundaryError
from ajet.schema.task import WorkflowOutput

START_WINDOW_S = 5.0
"""Seconds after which a start is no longer counted. A slow worker may wait for more than a processor."""
UNRESPONSIVE_S = 0.25
"""Seconds without a reply to LOCATE after which a worker gets no further LOCATE."""
_MAX_WARNINGS = 100


@dataclass(slots=True, eq=False)
class _InflightAttempt:
    """An attempt in play by the worker, and the output so far."""

    number: int
    attempt: LocalAttempt
    future: Future[WorkflowOutput]
    printed: str = ""
    dropped: int = 0
    """The number of characters printed before `printed`."""

    def add_printed(self, text: str, removed_chars: int) -> None:
        """Append printed text, of which `removed_chars` were lost before, and store the end of the output with the
        attempt.
        """
        joined = self.printed + text
        self.printed = joined[-OUTPUT_CHARS:]
        self.dropped += removed_chars + len(joined) - len(self.printed)
        self.attempt.printed = keep_tail(self.printed, OUTPUT_CHARS, dropped=self.dropped)


class WorkerHandle:
    """Handles a worker, started by a thread of the handle. Thread-safe. Only `locate` waits for the worker."""

    def __init__(
        self,
        setup: WorkerSetup,
        start: StartWorker,
        *,
        on_change: Callable[[WorkerHandle], None] = lambda _: None,
        warned: set[str] | None = None,
    ) -> None:
        """Prepare the handle and start the worker.

        Args:
            on_change: Called at the worker's first message, before the future of an ended attempt is set, and when the
                worker is over.
            warned: Warnings already logged for workers of the same pool.
        """
        self._setup = setup
        self._start_process = start
        self._on_change = on_change
        self._logged_warnings = set[str]() if warned is None else warned
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._inflight_attempts: dict[int, _InflightAttempt] = {}
        self._numbers: dict[LocalAttempt, int] = {}
        self._last_number = 0
        self._stopped_at: dict[int, float] = {}
        """Stopped attempts without an end, with the time of the stop, the oldest first."""
        self._watches_stopped = False
        self._is_unresponsive = False
        """True if the worker did not reply to LOCATE in time. Once the attempt is stopped, the worker gets no others,
        because other attempts would wait as long.
        """
        self._created_at, self._has_answered = time.monotonic(), False
        self.is_accepting = True
        """True while the worker accepts attempts."""
        self.is_over = False
        """True once the process has ended, or could not be started."""
        self.changes: list[str] = []
        """Descriptions of changes left in the process by the last attempt."""
        self._outgoing: SimpleQueue[_InflightAttempt | int | None] = SimpleQueue()
        """Attempts to start, and numbers of attempts to cancel. None ends the queue."""
        threading.Thread(target=self._run_worker, name="ajet-worker", daemon=True).start()

    @property
    def playing_count(self) -> int:
        """The number of attempts that the worker plays, without stopped ones."""
        return len(self._inflight_attempts)

    @property
    def abandoned_count(self) -> int:
        """The number of stopped attempts that have not ended yet."""
        return len(self._stopped_at)

    @property
    def remaining_start_seconds(self) -> float:
        """Seconds for which the worker still counts as starting. 0 after its first message, and without an attempt."""
        is_starting = self.is_accepting and not self._has_answered and bool(self._inflight_attempts)
        return max(0.0, self._created_at + START_WINDOW_S - time.monotonic()) if is_starting else 0.0

    @property
    def is_alive(self) -> bool:
        """True while the worker's process runs."""
        process = self._process
        return process is not None and process.is_alive

    def begin(self, attempt: LocalAttempt, future: Future[WorkflowOutput]) -> bool:
        """Queue the attempt for the worker. Return False if the worker accepts no more attempts.

        Args:
            future: Gets the attempt's output or exception.
        """
        with self._lock:
            if not self.is_accepting:
                return False
            self._last_number += 1
            inflight = self._inflight_attempts[self._last_number] = _InflightAttempt(self._last_number, attempt, future)
            self._numbers[attempt] = self._last_number
            self._outgoing.put(inflight)
        return True

    def locate(self, attempt: LocalAttempt) -> str:
        """Return the attempt's current line of user code, or ""."""
        with self._lock:
            number, process = self._numbers.get(attempt), self._process
        if number is None or process is None or self._is_unresponsive:
            return ""
        started = time.monotonic()
        line = process.locate(number)
        self._is_unresponsive = not line and time.monotonic() - started > UNRESPONSIVE_S
        return line

    def stop(self, attempt: LocalAttempt) -> None:
        """Cancel the attempt, or kill a worker with this single attempt. The attempt's future stays open."""
        with self._lock:
            number = self._numbers.pop(attempt, None)
            if number is None or self._inflight_attempts.pop(number, None) is None:
                return
            self._stopped_at[number] = time.monotonic()
            if self._setup.shared:
                self._outgoing.put(number)
                self.is_accepting = self.is_accepting and not self._is_unresponsive
                if not self._watches_stopped:
                    self._watches_stopped = True
                    self._check_stopped_later(GRACE)
        if not self._setup.shared:
            attempt.printed = self.output()
            self.close()

    def close(self) -> None:
        """Kill the worker, with all descendants."""
        with self._lock:
            self.is_accepting, process = False, self._process
        if process is not None:
            process.kill()

    def output(self) -> str:
        """Return the end of the worker's standard output and error."""
        process = self._process
        return process.output() if process is not None else ""

    def forget_output(self) -> None:
        """Drop what the worker process has printed, so that the next attempt's failure shows its own output only."""
        if self._process is not None:
            self._process.forget_output()

    def _run_worker(self) -> None:
        """Start the process, then send the queued attempts and cancellations until the queue ends. Runs in the handle's
        own thread.
        """
        try:
            process = WorkerProcess(self._setup, self._start_process)
            with self._lock:  # before handling messages: an end is recorded with the process's output
                self._process, is_wanted = process, self.is_accepting
            threading.Thread(
                target=self._receive_messages, args=(process,), name="ajet-worker-reads", daemon=True
            ).start()
        except Exception as problem:  # noqa: BLE001 - raised at callers waiting for the attempts
            self._fail_start(problem)
            return
        if not is_wanted:
            process.kill()
        settings: object = None
        while (order := self._outgoing.get()) is not None:
            with suppress(OSError):  # the process is gone, as the receiving thread will notice
                if isinstance(order, int):
                    process.send(order, "stop", encode_value(None))
                elif self._send_attempt(process, order, with_settings=order.attempt.config is not settings):
                    settings = order.attempt.config if self._setup.shared else None

    def _send_attempt(self, process: WorkerProcess, inflight: _InflightAttempt, *, with_settings: bool) -> bool:
        """Send an attempt, `with_settings` if the worker needs the configuration. Return True if the attempt was
        sent.
        """
        with self._lock:
            if inflight.number not in self._inflight_attempts:
                if self._setup.shared:
                    self._stopped_at.pop(inflight.number, None)  # stopped before the start, and will send no end
                return False
        try:
            attempt = inflight.attempt
            body = pack_attempt(attempt.task, attempt.config if with_settings else None, attempt.began)
        except EpisodeError as problem:
            self._finish_attempt(inflight.number, problem)
            return False
        process.send(inflight.number, "attempt", body)
        return True

    def _receive_messages(self, process: WorkerProcess) -> None:
        """Handle the worker's messages until the worker is gone."""
        try:
            while True:
                message = process.receive()
                if not self._has_answered:
                    self._has_answered = True
                    self._on_change(self)
                self._handle_message(process, message)
        except (ValueError, EOFError, OSError) as problem:
            with self._lock:
                self.is_accepting = False
            self._fail_all(process.explain_death(problem))

    def _handle_message(self, process: WorkerProcess, message: Message) -> None:
        """Handle a message. Raises ValueError for a message not allowed from the worker."""
        if message.kind == "warning" and self._setup.shared:
            self._log_warning(*decode_printed(message.body))
            return
        with self._lock:
            inflight, is_stopped = self._inflight_attempts.get(message.about), message.about in self._stopped_at
        if inflight is None and not is_stopped:
            raise ValueError("it sent a message about an attempt that it does not run")
        if message.kind == "ended":
            end = self._read_end(message)
            outcome = end.outcome
            self._finish_attempt(
                message.about, EpisodeError(outcome) if isinstance(outcome, Failure) else outcome, end.changes
            )
        elif message.kind == "printed" and self._setup.shared:
            printed = decode_printed(message.body)
            if inflight is not None:
                inflight.add_printed(*printed)
        elif inflight is None:
            refusal = make_error("stopped", "its episode has ended", boundary="ajet")
            process.send(message.about, "failed", encode_failure(refusal.failure, []))
        else:
            self._answer_request(process, inflight.attempt, message)

    def _read_end(self, message: Message) -> AttemptEnd:
        """Return the end of an attempt. In a shared worker an unreadable end fails only this attempt; otherwise
        ValueError is raised.
        """
        try:
            return decode_end(message.body)
        except ValueError as problem:
            if not self._setup.shared:
                raise
            reason = f"ajet cannot read the workflow's output: {problem}"
            return AttemptEnd(make_error("wrong_type", reason).failure, [])

    def _answer_request(self, process: WorkerProcess, attempt: LocalAttempt, message: Message) -> None:
        """Reply to a request that the worker sent for an attempt. Raises ValueError for an unreadable request."""
        try:
            request = decode_request(message.kind, message.body)
            if message.kind == "open" and attempt.session is not None:
                raise ValueError("it opened its session a second time")
        except ValueError as problem:
            if not self._setup.shared:
                raise
            # In a shared worker only this attempt fails. A worker of one attempt is killed by the caller instead.
            process.send(message.about, "error", encode_value(f"the request cannot be read: {problem}"))
            return
        try:
            answer = _call_attempt(attempt, message.kind, request)
        except Exception as problem:  # noqa: BLE001 - raised in the worker that sent the request
            if isinstance(problem, EpisodeError | BoundaryError):
                process.send(message.about, "failed", encode_failure(classify_exception(problem), []))
            else:
                process.send(message.about, "error", encode_value(repr(problem)))
            return
        # Inside the worker the gateway may have another address than in this process.
        if isinstance(answer, Endpoint) and process.base_url:
            answer = replace(answer, base_url=process.base_url)
        process.send(message.about, "ok", encode_reply(message.kind, answer))

    def _log_warning(self, text: str, removed_chars: int) -> None:
        """Log the end of a warning printed in a worker: each text once, and at most _MAX_WARNINGS texts per pool."""
        text = keep_tail(text, OUTPUT_CHARS, dropped=removed_chars).strip()
        if text not in self._logged_warnings and len(self._logged_warnings) < _MAX_WARNINGS:
            self._logged_warnings.add(text)
            logger.warning("a worker process (rollout.isolation: loops) printed a warning: {}", text)

    def _check_stopped_later(self, seconds: float) -> None:
        """Check in a timer thread, because the sending thread may wait for a process that does not read."""
        timer = threading.Timer(seconds, self._check_stopped)
        timer.daemon = True
        timer.start()

    def _check_stopped(self) -> None:
        """Accept no more attempts if a stopped attempt still runs after GRACE seconds."""
        with self._lock:
            since = next(iter(self._stopped_at.values()), None) if self.is_accepting else None
            remaining = None if since is None else since + GRACE - time.monotonic()
            self._watches_stopped = remaining is not None and remaining > 0
            if remaining is not None and remaining <= 0:
                self.is_accepting = False
        if remaining is not None and remaining > 0:
            self._check_stopped_later(remaining)
        self._close_if_done()

    def _finish_attempt(
        self, number: int, outcome: WorkflowOutput | EpisodeError, changes: list[str] | None = None
    ) -> None:
        """Set the output or the exception of an attempt's future.

        Args:
            number: Id of the attempt in this worker.
            outcome: The output, or the exception to raise.
            changes: Descriptions of what the attempt left changed in the process.
        """
        with self._lock:
            self._stopped_at.pop(number, None)
            inflight = self._inflight_attempts.pop(number, None)
            if inflight is not None:
                self._numbers.pop(inflight.attempt, None)
                self.changes = changes or []
        if inflight is not None:
            self._store_output(inflight)
            self._on_change(self)
            _set_outcome(inflight.future, outcome)
        self._close_if_done()

    def _store_output(self, inflight: _InflightAttempt) -> None:
        """Store the process's output with the attempt, unless attempts share the process and thus its output."""
        if not self._setup.shared:
            inflight.attempt.printed = inflight.attempt.printed or self.output()

    def _close_if_done(self) -> None:
        """Kill the worker once it accepts no attempt and runs none."""
        with self._lock:
            process = None if self.is_accepting or self._inflight_attempts else self._process
        if process is not None and process.is_alive:
            process.kill()

    def _fail_start(self, problem: Exception) -> None:
        """Fail the attempts because the process could not be started. A full system may recover, so that failure is
        retryable.
        """
        if isinstance(problem, OSError | RuntimeError):  # the system has no more processes, descriptors or threads
            self._fail_all(f"the worker process could not be started: {problem}", retryable=True)
            return
        for inflight in self._mark_over():
            _set_outcome(inflight.future, problem)

    def _fail_all(self, why: str, *, retryable: bool | None = None) -> None:
        """Fail all attempts of the worker, because its process is gone.

        Args:
            retryable: True if the attempts may be played again. None: True if attempts share the worker, since any of
                them may have ended the process.
        """
        unfinished = self._mark_over()
        parallel_note = f" (it ran {len(unfinished)} episodes at the time)" if len(unfinished) > 1 else ""
        head, _, output = why.partition("\n")
        is_retryable = self._setup.shared if retryable is None else retryable
        for inflight in unfinished:
            message = "\n".join(filter(None, (head + parallel_note, inflight.printed.strip(), output)))
            if is_retryable:
                problem = EpisodeError(Failure("ajet", "process_died", message, retryable=True))
            else:
                problem = make_error("process_died", message)
            _set_outcome(inflight.future, problem)

    def _mark_over(self) -> list[_InflightAttempt]:
        """Note that the process is gone. Return the attempts that it was playing."""
        with self._lock:
            self.is_accepting, self.is_over = False, True
            unfinished = list(self._inflight_attempts.values())
            self._inflight_attempts = {}
            self._numbers = {}
            self._stopped_at = {}
        self._outgoing.put(None)
        for inflight in unfinished:
            self._store_output(inflight)
        self._on_change(self)
        return unfinished


def _call_attempt(attempt: LocalAttempt, kind: str, request: Any) -> Any:
    """Return the attempt's answer to a request of the given kind."""
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
    """Set the result or the exception of a future, unless the rollout has cancelled it."""
    if not future.set_running_or_notify_cancel():  # the rollout no longer waits for the future
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
