"""The other side of `loops`: a program that plays many attempts at a time, on one event loop.

Invariants: what `loop` promises holds within this process, and what `worker` says of channel, keys and family; each
attempt asks with its own number, and an answer goes to who asked first in its name. The thread that listens never
speaks, nor waits for one that does, so that both sides always read: else each could wait for the other to. What is
printed in an attempt's tasks and threads is told in its name.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TextIO

from ajet.config import resolve_reference
from ajet.environment.family import adopt_orphans
from ajet.rollout import bounds
from ajet.rollout.failure import classify, failed
from ajet.rollout.garbage_collection import rare_collections
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.loop import LoopIsolation
from ajet.rollout.isolation.messages import Home, decode_attempt, decode_home, encode_failure, encode_question
from ajet.rollout.isolation.values import encoded
from ajet.rollout.isolation.worker import (
    FarAttempt,
    FarEndpoints,
    Line,
    answered,
    end_when_told,
    forks_end_here,
    last_words,
    over,
)
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput
from ajet.workflow.ambient import AGENT, Ambient
from ajet.workflow.function import KEY, as_workflow

_plays: ContextVar[SharedAttempt | None] = ContextVar("ajet_plays", default=None)
"""Whose code runs here, for what it prints."""


class SharedLine(Line):
    """This process' end of the channel, for many attempts. Thread-safe."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._books = threading.Lock()
        """Held for `_asked` alone, and never while something is sent, as the other lock is."""
        self._asked: dict[int, deque[Future[Message]]] = {}
        """Of each attempt that has not ended: who waits for an answer, in the order in which they asked."""
        self._printed: deque[tuple[int, str]] = deque()
        """What attempts printed and nobody has sent yet."""

    def begin(self, attempt: int) -> None:
        """From now on it may ask."""
        with self._books:
            self._asked[attempt] = deque()

    def post(self, attempt: int, kind: str, value: Any) -> Future[Message]:
        """Ask; the answer will be in the future. Raises EpisodeFailed."""
        if os.getpid() != self.owner:
            raise failed("forked", "a forked process asked for a model: make its client before the fork")
        body = encode_question(kind, value)
        answer: Future[Message] = Future()
        with self._lock:
            with self._books:
                waiting = self._asked.get(attempt)
                if waiting is None:
                    raise over()
                waiting.append(answer)
            self._channel.send(attempt, kind, body)
        self._tell_printed()
        return answer

    def ask(self, attempt: int, kind: str, value: Any) -> Any:
        """One question, one answer, for which this thread waits. Raises EpisodeFailed."""
        return answered(kind, self.post(attempt, kind, value).result())

    def hand(self, answer: Message) -> None:
        """To who asked first in its attempt's name."""
        with self._books:
            waiting = self._asked.get(answer.about)
            found = waiting.popleft() if waiting else None
        if found is not None and found.set_running_or_notify_cancel():
            found.set_result(answer)

    def open_for(self, attempt: int) -> bool:
        """Whether this very process may still speak of that attempt."""
        return os.getpid() == self.owner and attempt in self._asked

    def say(self, attempt: int, text: str) -> None:
        """What it printed. Waits for nobody: an object that is thrown away may print while this very thread sends."""
        self._printed.append((attempt, text))
        self._tell_printed()

    def _tell_printed(self) -> None:
        """Unless somebody is sending, who does so then."""
        while self._printed and self._lock.acquire(blocking=False):
            try:
                self._send_printed()
            finally:
                self._lock.release()

    def _send_printed(self) -> None:
        while self._printed:
            attempt, text = self._printed.popleft()
            if self.open_for(attempt):
                self._channel.send(attempt, "printed", encoded(text))

    def ended(self, attempt: int, body: bytes) -> None:
        """Its last word, once: nobody asks in its name after it."""
        with self._lock:
            self._send_printed()
            with self._books:
                waiting = self._asked.pop(attempt, None)
            if waiting is not None:
                self._channel.send(attempt, "ended", body)
        self._tell_printed()
        for each in waiting or ():
            if each.set_running_or_notify_cancel():
                each.set_exception(over())


class SharedAttempt(FarAttempt):
    """One of many on this side."""

    def __init__(self, line: SharedLine, number: int, workflow_class: type[Any], task: Any, config: Any, began: float):
        super().__init__(workflow_class, task, config, FarEndpoints(line, number), began)
        self._line, self.number, self.owner = line, number, line.owner
        self._printed: deque[str] = deque()
        self._held = 0
        """Characters of it, about."""
        self.left = False
        """Whether its task is over, whatever its future says."""

    def open(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Have the session opened; this thread waits."""
        self.stage = "open"
        _plays.set(self)
        self._endpoints.ask("open", list(trainable) if trainable else None)
        self.stage = "execute"
        return self._endpoints

    async def aopen(self, trainable: Collection[str] | None) -> FarEndpoints:
        """The same while others go on, with the endpoint that most agents ask for next."""
        self.stage = "open"
        _plays.set(self)
        opened = self._line.post(self.number, "open", list(trainable) if trainable else None)
        endpoint = self._line.post(self.number, "endpoint", (AGENT, AGENT, None))
        answered("open", await asyncio.wrap_future(opened))
        self._endpoints.know(AGENT, answered("endpoint", await asyncio.wrap_future(endpoint)))
        self.stage = "execute"
        return self._endpoints

    def prints(self, text: str) -> None:
        """Told line by line."""
        self._printed.append(text)
        self._held += len(text)
        if "\n" in text or self._held > bounds.PRINTED:
            self.flush()

    def flush(self) -> None:
        """What is left of it; each part once, whichever threads print."""
        parts, self._held = [], 0
        with suppress(IndexError):
            while True:
                parts.append(self._printed.popleft())
        if parts:
            self._line.say(self.number, "".join(parts))


class Prints(io.TextIOBase):
    """Standard output or error: what an attempt writes is told in its name, the rest goes where it went."""

    def __init__(self, real: TextIO) -> None:
        self._real = real
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """See TextIOBase."""
        attempt = _plays.get()
        if attempt is None or os.getpid() != attempt.owner:
            return self._real.write(text)
        attempt.prints(text)
        return len(text)

    def flush(self) -> None:
        """See TextIOBase."""
        self._real.flush()

    def fileno(self) -> int:
        """That of the real one."""
        return self._real.fileno()

    def isatty(self) -> bool:
        """It is a pipe."""
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the real one."""
        return self._real.encoding


class _Bytes(io.BufferedIOBase):
    """For those who write bytes."""

    def __init__(self, prints: Prints) -> None:
        self._prints = prints

    def write(self, given: Any) -> int:
        """See BufferedIOBase."""
        found = bytes(given)
        self._prints.write(found.decode("utf-8", "replace"))
        return len(found)

    def flush(self) -> None:
        """See BufferedIOBase."""
        self._prints.flush()

    def writable(self) -> bool:
        """It is."""
        return True


class Loops(LoopIsolation):
    """The loop here: says when an attempt's task is really over."""

    def __init__(self, plays: SharedPlayer, owner: int) -> None:
        super().__init__()
        self._plays, self._owner = plays, owner

    async def _noted(self, attempt: Any) -> WorkflowOutput:
        try:
            with forks_end_here(self._owner):
                return await super()._noted(attempt)
        finally:
            self._plays.left(attempt)


class SharedPlayer:
    """Plays attempts with the workflow of one home."""

    def __init__(self, line: SharedLine, home: Home) -> None:
        self._line, self._home = line, home
        self._loops = Loops(self, line.owner)
        self._attempts: dict[int, tuple[SharedAttempt, Future[WorkflowOutput]]] = {}
        self._config: Any = None
        self._workflow_class: type[Any] | None = None
        """Once it could be imported."""
        self._ambient = Ambient(home.ambient)

    def hear(self, message: Message) -> None:
        """An attempt to begin or to stop, or an answer."""
        if message.kind == "attempt":
            self._begin(message.about, message.body)
        elif message.kind == "stop":
            found = self._attempts.get(message.about)
            if found is not None:
                self._loops.stop(found[0])  # type: ignore[arg-type]
        else:
            self._line.hand(message)

    def _begin(self, number: int, body: Any) -> None:
        self._line.begin(number)
        try:
            task, config, began = decode_attempt(body)
            self._config = config or self._config
            if self._workflow_class is None:
                home = self._home
                self._workflow_class = resolve_reference(home.reference, base=home.base, what=KEY, made=as_workflow)
            attempt = SharedAttempt(self._line, number, self._workflow_class, task, self._config, began)
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs: a module that is imported
            last = encode_failure(classify(problem, "construct"), [])
            threading.Thread(target=self._line.ended, args=(number, last), daemon=True).start()
            return
        future = self._loops.start(attempt)  # type: ignore[arg-type]
        self._attempts[number] = attempt, future
        future.add_done_callback(lambda done: self._done(attempt, done))

    def _done(self, attempt: SharedAttempt, future: Future[WorkflowOutput]) -> None:
        """Its future is: it has an outcome, or it was stopped and its task may go on."""
        if future.cancelled():
            if attempt.left:
                self._end(attempt, failed("stopped", "it was stopped", boundary="ajet").failure)
            return
        problem = future.exception()
        self._end(attempt, future.result() if problem is None else classify(problem, attempt.stage))

    def left(self, attempt: SharedAttempt) -> None:
        """Its task is over."""
        attempt.left = True
        found = self._attempts.get(attempt.number)
        if found is not None and found[1].cancelled():
            self._done(*found)

    def _end(self, attempt: SharedAttempt, outcome: WorkflowOutput | Failure) -> None:
        self._attempts.pop(attempt.number, None)
        attempt.flush()
        self._line.ended(attempt.number, last_words(outcome, []))

    def stands(self, number: int) -> str:
        """See Isolation."""
        found = self._attempts.get(number)
        return "" if found is None else self._loops.stands(found[0])  # type: ignore[arg-type]

    def close_beside(self) -> Sequence[threading.Thread]:
        """Close what attempts opened."""
        held = [attempt.resources for attempt, _ in tuple(self._attempts.values()) if attempt.resources.holds]
        return [resources.close_beside() for resources in held]


def main() -> None:
    """Serve until the channel closes."""
    line = SharedLine(int(sys.argv[1]))
    life = int(sys.argv[2])
    os.set_inheritable(life, False)
    adopt_orphans()
    player = SharedPlayer(line, decode_home(line.hear().body))
    threading.Thread(target=end_when_told, args=(life, player), daemon=True).start()
    sys.stdout, sys.stderr = Prints(sys.stdout), Prints(sys.stderr)
    with rare_collections():
        while True:
            try:
                player.hear(line.hear())
            except EOFError:
                return


if __name__ == "__main__":
    main()
