"""LoopsHandle: the rollout's side of a process that plays many attempts at a time.

Invariants: an attempt that was begun ends once, by its process' word or by the end of that process, which is nobody's
fault that can be named: each attempt that it played failed with it and may be played again. What it says of an attempt
and cannot be read fails that one alone. Nothing here waits for the process but threads of this handle's own. One in
which an attempt that was stopped goes on takes no other, and is ended when it plays none.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from loguru import logger

from ajet.rollout import bounds
from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import EpisodeFailed, failed
from ajet.rollout.isolation.channel import Message, encoded
from ajet.rollout.isolation.messages import (
    GRACE,
    Home,
    decode_ended,
    decode_printed,
    encode_failure,
)
from ajet.rollout.isolation.process import start_process
from ajet.rollout.isolation.worker_handle import WorkerHandle, attempt_handed_on
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput

_NEVER_BEGAN = "the process that was to play it could not be started"
_MOST_WARNINGS = 100
_MUTE_S = 0.25
"""Seconds after which no answer means that it cannot give one."""


@dataclass(slots=True, eq=False)
class _Playing:
    number: int
    attempt: Attempt
    future: Future[WorkflowOutput]
    printed: str = ""
    dropped: int = 0
    """Characters that it printed before those."""

    def prints(self, text: str, cut: int) -> None:
        whole = self.printed + text
        self.printed = whole[-bounds.PRINTED :]
        self.dropped += cut + len(whole) - len(self.printed)
        self.attempt.printed = bounds.ending(self.printed, bounds.PRINTED, before=self.dropped)


class LoopsHandle:
    """A handle of one process, which a thread of this handle's starts. Thread-safe; no method but `stands` waits."""

    def __init__(self, home: Home, warned: set[str]) -> None:
        """`warned`: what processes like it were warned of, which is said once."""
        self._home, self._warned = home, warned
        self._lock = threading.Lock()
        self._process: WorkerHandle | None = None
        self._playing: dict[int, _Playing] = {}
        self._numbers: dict[Attempt, int] = {}
        self._last = 0
        self._stopped: dict[int, float] = {}
        """Attempts that were stopped and whose end it has not told, with when that was, the first one first."""
        self._waits = False
        """Whether somebody looks after those."""
        self.takes = True
        """Whether it is given attempts."""
        self._mute = False
        """It did not say in time where an attempt stands: it is not asked again, for who asks waits; nor, when that one
        is stopped, given others, who would wait as long."""
        self._to_say: SimpleQueue[_Playing | int | None] = SimpleQueue()
        """Attempts to begin, numbers of those to stop; None: the end."""
        threading.Thread(target=self._speak, name="ajet-loops", daemon=True).start()

    @property
    def playing(self) -> int:
        """The number of attempts that it plays and nobody has stopped."""
        return len(self._playing)

    @property
    def abandoned(self) -> int:
        """The number of attempts that were stopped and have not ended."""
        return len(self._stopped)

    def begin(self, attempt: Attempt, future: Future[WorkflowOutput]) -> bool:
        """Have it played, and put its end into the future. Answers False where this process takes no more."""
        with self._lock:
            if not self.takes:
                return False
            self._last += 1
            playing = self._playing[self._last] = _Playing(self._last, attempt, future)
            self._numbers[attempt] = self._last
            self._to_say.put(playing)
        return True

    def stands(self, attempt: Attempt) -> str:
        """See Isolation."""
        with self._lock:
            number, process = self._numbers.get(attempt), self._process
        if number is None or process is None or self._mute:
            return ""
        began = time.monotonic()
        found = process.stands(number)
        self._mute = not found and time.monotonic() - began > _MUTE_S
        return found

    def stop(self, attempt: Attempt) -> None:
        """Have it cancelled; its future stays open."""
        with self._lock:
            number = self._numbers.pop(attempt, None)
            if number is not None and self._playing.pop(number, None) is not None:
                self._stopped[number] = time.monotonic()
                self._to_say.put(number)
                self.takes = self.takes and not self._mute
                if not self._waits:
                    self._waits = True
                    self._look_after(GRACE)

    def close(self) -> None:
        """Kill the process, with all that descends from it."""
        with self._lock:
            self.takes, process = False, self._process
        if process is not None:
            process.kill()

    def _speak(self) -> None:
        """Start it, and say what is to be said."""
        try:
            process = WorkerHandle(self._home, start_process)
            threading.Thread(target=self._listen, args=(process,), name="ajet-loops-hears", daemon=True).start()
        except (OSError, RuntimeError) as problem:  # no more processes, descriptors or threads
            self._over(f"{_NEVER_BEGAN}: {problem}")
            return
        with self._lock:
            self._process, wanted = process, self.takes
        if not wanted:
            process.kill()
        settings: object = None
        while (said := self._to_say.get()) is not None:
            with suppress(OSError):  # it is gone: who listens says so
                if isinstance(said, int):
                    process.say(said, "stop", encoded(None))
                elif self._told(process, said, said.attempt.config is settings):
                    settings = said.attempt.config

    def _look_after(self, seconds: float) -> None:
        """After that time, whether an attempt goes on that was stopped. Not by who speaks: a process that stands still
        keeps that one waiting."""
        later = threading.Timer(seconds, self._overdue)
        later.daemon = True
        later.start()

    def _overdue(self) -> None:
        with self._lock:
            since = next(iter(self._stopped.values()), None) if self.takes else None
            left = None if since is None else since + GRACE - time.monotonic()
            self._waits = left is not None and left > 0
            if left is not None and left <= 0:
                self.takes = False
        if left is not None and left > 0:
            self._look_after(left)
        self._end_if_done()

    def _told(self, process: WorkerHandle, playing: _Playing, known: bool) -> bool:
        """An attempt to begin. `known`: it was told these settings. Answers whether it was told."""
        with self._lock:
            if playing.number not in self._playing:
                self._stopped.pop(playing.number, None)  # before it began: there is no end to wait for
                return False
        try:
            body = attempt_handed_on(playing.attempt, settings=not known)
        except EpisodeFailed as problem:
            self._end(playing.number, problem)
            return False
        process.say(playing.number, "attempt", body)
        return True

    def _listen(self, process: WorkerHandle) -> None:
        try:
            while True:
                self._heard(process, process.hear())
        except (ValueError, EOFError, OSError) as problem:
            with self._lock:
                self.takes = False
            self._over(process.died_of(problem))

    def _heard(self, process: WorkerHandle, message: Message) -> None:
        """Raises ValueError for a message that nobody who plays has sent."""
        if message.kind == "warning":
            self._warn(*decode_printed(message.body))
            return
        with self._lock:
            playing, stopped = self._playing.get(message.about), message.about in self._stopped
        if playing is None and not stopped:
            raise ValueError("it spoke of an attempt that it does not play")
        if message.kind == "ended":
            self._end(message.about, _outcome(message))
        elif message.kind == "printed":
            said = decode_printed(message.body)
            if playing is not None:
                playing.prints(*said)
        elif playing is not None:
            try:
                process.serve(playing.attempt, message)
            except ValueError as problem:
                process.say(message.about, "error", encoded(f"what was asked cannot be read: {problem}"))
        else:
            why = failed("stopped", "its episode is over", boundary="ajet")
            process.say(message.about, "failed", encode_failure(why.failure, []))

    def _warn(self, text: str, cut: int) -> None:
        text = bounds.ending(text, bounds.PRINTED, before=cut).strip()
        if text not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(text)
            logger.warning("a process of rollout.isolation loops: {}", text)

    def _end(self, number: int, outcome: WorkflowOutput | EpisodeFailed) -> None:
        with self._lock:
            self._stopped.pop(number, None)
            playing = self._playing.pop(number, None)
            if playing is not None:
                self._numbers.pop(playing.attempt, None)
        if playing is not None:
            _settle(playing.future, outcome)
        self._end_if_done()

    def _end_if_done(self) -> None:
        """End the process once it takes no more attempts and plays none."""
        with self._lock:
            process = None if self.takes or self._playing else self._process
        if process is not None and process.alive:
            process.kill()

    def _over(self, why: str) -> None:
        """Fail all that the process played: it is gone."""
        with self._lock:
            self.takes = False
            lost = tuple(self._playing.values())
            self._playing, self._numbers, self._stopped = {}, {}, {}
        self._to_say.put(None)
        beside = f" (it played {len(lost)} episodes)" if len(lost) > 1 else ""
        head, _, printed = why.partition("\n")
        for playing in lost:
            message = "\n".join(filter(None, (head + beside, playing.printed.strip(), printed)))
            _settle(playing.future, EpisodeFailed(Failure("ajet", "process_died", message, retryable=True)))


def _outcome(message: Message) -> WorkflowOutput | EpisodeFailed:
    try:
        outcome = decode_ended(message.body).outcome
    except ValueError as problem:
        return failed("wrong_type", f"the output cannot be read in the rollout's process: {problem}")
    return EpisodeFailed(outcome) if isinstance(outcome, Failure) else outcome


def _settle(future: Future[WorkflowOutput], outcome: WorkflowOutput | EpisodeFailed) -> None:
    if not future.set_running_or_notify_cancel():  # somebody let go of it
        return
    if isinstance(outcome, EpisodeFailed):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
