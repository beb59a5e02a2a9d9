"""WorkerHandle: the rollout's side of a worker, wherever that runs.

Invariants: a worker is ended with all that descends from it (Linux; elsewhere with its process group), by its own
recorded id, and before that id can be anybody else's. Nothing that it says is believed beyond its size and its form,
and only of the attempt at hand; one that says anything else is ended, and that attempt has failed.
"""

from __future__ import annotations

import atexit
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakSet

import psutil

from ajet.environment.family import end_family
from ajet.rollout import bounds
from ajet.rollout.attempt import Attempt
from ajet.rollout.failure import EpisodeFailed, classify, failed
from ajet.rollout.isolation.channel import LONGEST, Channel, Message, encoded
from ajet.rollout.isolation.messages import (
    CLOSE,
    CLOSED,
    GRACE,
    ID_BYTES,
    LOCATE,
    Ended,
    Home,
    decode_ended,
    decode_question,
    encode_answer,
    encode_attempt,
    encode_failure,
    encode_home,
)
from ajet.rollout.isolation.printed import Printed
from ajet.rollout.isolation.priority import give_way, session_gives_way
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import BoundaryError
from ajet.schema.task import WorkflowOutput

ENDS_S = 2.0
"""Seconds in which a sandbox ends after the worker in it."""
_burials: WeakSet[threading.Thread] = WeakSet()
ANSWERS_S = 0.5
"""Seconds in which a worker says where its attempt stands; one that holds on to the interpreter cannot."""


class Ends(NamedTuple):
    """Descriptors that a worker gets."""

    channel: int
    life: int
    """Of a socket that lives as long as the rollout's process."""
    output: int
    """For standard output and error."""


class Started(NamedTuple):
    """A worker that was started."""

    process: subprocess.Popen[bytes]
    gone: Callable[[], None] = lambda: None
    """Called when it has ended: removes what it lay in."""
    base_url: str = ""
    """Where the gateway is from there; "" where it is where it is from here."""
    polite: bool = True
    """Whether what its attempt started is asked to end, and given time for it, before it is ended."""


class WorkerHandle:
    """A worker that plays one attempt after the other."""

    def __init__(self, home: Home, start: Callable[[Home, Ends], Started]) -> None:
        self._line, theirs = socket.socketpair()
        self._life, life = socket.socketpair()
        self._printed = Printed()
        with theirs, life:
            try:
                self._started = start(home, Ends(theirs.fileno(), life.fileno(), self._printed.theirs))
            finally:
                self._printed.begin()
        self._process = self._started.process
        if self._started.base_url:
            home = replace(home, ambient=replace(home.ambient, base_url=self._started.base_url))
        give_way(self._process.pid)
        session_gives_way(self._process.pid)
        self._channel = Channel(self._line.fileno(), self._line.fileno())
        self._saying = threading.Lock()
        with suppress(OSError):  # it is gone: its first attempt says so
            self.say(0, "home", encode_home(home))
        self._burial = threading.Lock()
        self._number = 0
        self.changes: list[str] = []
        """What its last attempt left otherwise than it found it, in words."""

    @property
    def alive(self) -> bool:
        """Whether the process still runs. One that has ended is not waited for here: its id stays its own until what is
        left of its group is ended."""
        if self._process.returncode is not None:
            return False
        try:
            return psutil.Process(self._process.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # somebody else waited for it
            return False

    def run(self, attempt: Attempt, heard: Callable[[], None] = lambda: None) -> WorkflowOutput:
        """Serve one attempt until it ends. `heard`: called when it says something. Raises EpisodeFailed."""
        self._number += 1
        body = attempt_handed_on(attempt)
        try:
            self.say(self._number, "attempt", body)
            ended = self._served(attempt, heard)
        except (ValueError, EOFError, OSError) as problem:
            raise failed("process_died", self.died_of(problem)) from problem
        self.changes = ended.left
        if isinstance(ended.outcome, Failure):
            raise EpisodeFailed(ended.outcome)
        return ended.outcome

    def _served(self, attempt: Attempt, heard: Callable[[], None]) -> Ended:
        """How it ended. Raises ValueError for a message that nobody who plays this attempt has sent."""
        while True:
            message = self.hear()
            heard()
            if message.about != self._number:
                raise ValueError("it spoke of another attempt")
            if message.kind == "ended":
                return decode_ended(message.body)
            self.serve(attempt, message)

    def hear(self) -> Message:
        """The next message. Raises EOFError or OSError when it is gone, ValueError for what is no message."""
        return self._channel.receive()

    def say(self, about: int, kind: str, body: bytes) -> None:
        """A message to it. Raises OSError when it is gone. Thread-safe."""
        with self._saying:
            self._channel.send(about, kind, body)

    def serve(self, attempt: Attempt, message: Message) -> None:
        """Answer what is asked in the name of an attempt. Raises ValueError for what nobody asks who plays it."""
        asked = decode_question(message.kind, message.body)
        if message.kind == "open":
            if attempt.session is not None:
                raise ValueError("it opened its session twice")
            attempt.stage = "open"
        self.say(message.about, *self._answer(attempt, message.kind, asked))

    def died_of(self, problem: Exception) -> str:
        """End one that is gone, or that said what cannot be read; answers what to say of that."""
        if isinstance(problem, ValueError):
            self._end()
            why = f"what came from the workflow's process cannot be read here ({problem}); it was ended"
        else:
            why = f"the workflow's process ended with code {self._end(by_itself=ENDS_S)}"
        return f"{why}\n{self.printed()}".strip()

    def _answer(self, attempt: Attempt, kind: str, asked: Any) -> tuple[str, bytes]:
        """To what the process asks for (its session, the endpoint of an agent) or says (a use of a tool)."""
        try:
            answer = _asked_of(attempt, kind, asked)
        except Exception as problem:  # noqa: BLE001 - it is raised in the process that asked
            if isinstance(problem, EpisodeFailed | BoundaryError):
                return "failed", encode_failure(classify(problem), [])
            return "error", encoded(repr(problem))
        if isinstance(answer, Endpoint) and self._started.base_url:
            answer = replace(answer, base_url=self._started.base_url)
        return "ok", encode_answer(kind, answer)

    def stands(self, number: int = 0) -> str:
        """Where the person's code stands in it, as far as it can say so; in the attempt of that number, where it plays
        several."""
        said = b""
        with suppress(OSError):
            self._life.settimeout(ANSWERS_S)
            self._life.sendall(LOCATE + number.to_bytes(ID_BYTES, "big"))
            while not said.endswith(b"\n") and len(said) < 1 << 16 and (more := self._life.recv(4096)):
                said += more
        return said.decode(errors="replace").strip() if said.endswith(b"\n") else ""

    def printed(self) -> str:
        """The end of what this attempt wrote to standard output and error."""
        return self._printed.text()

    def forget_printed(self) -> None:
        """Begin anew for the next attempt."""
        self._printed.forget()

    def kill(self) -> None:
        """End it with all that descends from it; does not wait."""
        burial = threading.Thread(target=self._end, args=(GRACE,), name="ajet-bury", daemon=True)
        _burials.add(burial)
        burial.start()

    def _end(self, grace: float = 0.0, *, by_itself: float = 0.0) -> int:
        """End the worker, and wait. Answers how the process ended. by_itself: seconds in which what lies around a
        worker that is gone ends, too, and says how that ended."""
        with self._burial:
            if not self._started.polite and by_itself:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(by_itself)
            if self._process.returncode is None:  # not waited for: its id is still its own
                self._have_it_close(GRACE)
                end_family(self._process.pid, grace if self._started.polite else 0.0)
                self._life.close()
            code = self._process.wait()
            self._started.gone()
            return code

    def _have_it_close(self, grace: float) -> None:
        """Have the worker close what its attempt opened; it says when that is done."""
        until = time.monotonic() + grace
        with suppress(OSError):
            self._life.settimeout(grace)
            self._life.sendall(CLOSE)
        ready = select.poll()
        ready.register(self._life.fileno(), select.POLLIN)
        process = psutil.Process(self._process.pid)
        with suppress(OSError, psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE and (left := until - time.monotonic()) > 0:
                if ready.poll(min(50.0, 1000 * left)):
                    said = self._life.recv(4096)
                    if not said or said.endswith(CLOSED):
                        return


def attempt_handed_on(attempt: Attempt, *, settings: bool = True) -> bytes:
    """What a worker is told of an attempt. settings: with the configuration. Raises EpisodeFailed for a task that
    cannot be told."""
    try:
        body = encode_attempt(attempt.task, attempt.config if settings else None, attempt.began)
    except TypeError as problem:
        raise _not_handed_on(f"it holds {problem}") from problem
    except Exception as problem:  # the border where user code runs: its objects speak for themselves
        raise _not_handed_on(bounds.words_of(problem) or type(problem).__name__) from problem
    if len(body) > LONGEST:
        raise _not_handed_on(f"it is {len(body)} bytes long, of at most {LONGEST}")
    return body


def _not_handed_on(why: str) -> EpisodeFailed:
    return failed("no_data", f"the task cannot be handed to another process: {why}", boundary="ajet")


@atexit.register
def _bury() -> None:
    """A worker that has closed its things stands still until it is ended: who is about to end one does so before this
    process is gone."""
    until = time.monotonic() + 2 * GRACE + ENDS_S
    for burial in tuple(_burials):
        burial.join(max(0.0, until - time.monotonic()))


def _asked_of(attempt: Attempt, kind: str, asked: Any) -> Any:
    if kind == "open":
        attempt.open(asked)
        return None
    assert attempt.session is not None
    if kind == "context_full":
        return attempt.session.context_full()
    if kind == "replay":
        assert attempt.replay is not None
        return attempt.replay(*asked)
    if kind == "replayed_tools":
        assert attempt.replay is not None
        return attempt.replay.tools()
    if kind == "pin":
        return attempt.pin(asked)
    if kind == "tool_used":
        attempt.session.tool_used(asked)
        return None
    return attempt.session(*asked)
