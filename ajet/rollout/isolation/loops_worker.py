"""The other side of `loops`: a program that plays many attempts at a time, on one event loop.

Invariants: what `loop` promises holds within this process, and what `worker` says of channel, keys and family; each
attempt asks with its own number, and an answer goes to who asked first in its name. The thread that listens never
speaks, nor waits for one that does, so that both sides always read: else each could wait for the other to. What is
printed in an attempt's tasks and threads is told in its name.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any

from loguru import logger

from ajet.config import resolve_reference
from ajet.rollout.failure import classify, failed
from ajet.rollout.garbage_collection import rare_collections
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.loop import LoopIsolation
from ajet.rollout.isolation.loops_prints import Prints, Tail, speaks
from ajet.rollout.isolation.messages import Home, decode_attempt, decode_settings, encode_question
from ajet.rollout.isolation.thread import ThreadIsolation
from ajet.rollout.isolation.values import encoded
from ajet.rollout.isolation.worker import FarAttempt, FarEndpoints, Line, answered, last_words, over
from ajet.rollout.isolation.worker_life import end_fork, forks_end_here, serve
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput
from ajet.workflow.ambient import AGENT, Ambient
from ajet.workflow.function import KEY, as_workflow

OF_NOBODY = 0
"""The number in whose name is told what is no attempt's."""


class Talk:
    """A message of an attempt that is no question."""

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind, self.tail = number, kind, Tail()
        self.waits = False
        """Whether it is among those whose words are to be told."""


class SharedLine(Line):
    """This process' end of the channel, for many attempts. Thread-safe."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._books = threading.Lock()
        """Held for `_asked` alone, and never while something is sent, as the other lock is."""
        self._asked: dict[int, deque[Future[Message]]] = {}
        """Of each attempt that has not ended: who waits for an answer, in the order in which they asked."""
        self._talk: deque[Talk] = deque()
        """Those of whose words some are not told yet, each once."""

    def begin(self, attempt: int) -> None:
        """Let the attempt ask from now on."""
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
        self._tell()
        return answer

    def ask(self, attempt: int, kind: str, value: Any) -> Any:
        """Ask one question and wait, in this thread, for its answer. Raises EpisodeFailed."""
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

    def say(self, talk: Talk) -> None:
        """What is in its tail. Waits for nobody: an object that is thrown away may print while this very thread
        sends."""
        if not talk.waits:
            talk.waits = True
            self._talk.append(talk)
        self._tell()

    def _tell(self) -> None:
        """Unless somebody is sending, who does so then."""
        while self._talk and self._lock.acquire(blocking=False):
            try:
                self._send_talk()
            finally:
                self._lock.release()

    def _send_talk(self) -> None:
        while self._talk:
            talk = self._talk.popleft()
            talk.waits = False  # before its words are taken: what it says from now on makes it wait again
            said = talk.tail.take()
            if said[0] and (talk.number == OF_NOBODY or self.open_for(talk.number)):
                self._channel.send(talk.number, talk.kind, encoded(said))

    def ended(self, attempt: int, body: bytes) -> None:
        """Send the attempt's last word, once: nobody asks in its name after it."""
        with self._lock:
            self._send_talk()
            with self._books:
                waiting = self._asked.pop(attempt, None)
            if waiting is not None:
                self._channel.send(attempt, "ended", body)
        self._tell()
        for each in waiting or ():
            if each.set_running_or_notify_cancel():
                each.set_exception(over())


class SharedAttempt(FarAttempt):
    """One of the many attempts on this side."""

    def __init__(self, line: SharedLine, number: int, workflow_class: type[Any], task: Any, config: Any, began: float):
        super().__init__(workflow_class, task, config, FarEndpoints(line, number), began)
        self._line, self.number, self.owner = line, number, line.owner
        self._talk = Talk(number, "printed")
        self.left = False
        """Whether its task is over, whatever its future says."""

    def open(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Have the session opened; this thread waits."""
        self.stage = "open"
        self._endpoints.ask("open", list(trainable) if trainable else None)
        self.stage = "execute"
        return self._endpoints

    async def aopen(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Open the endpoints while others go on, with the one that most agents ask for next."""
        self.stage = "open"
        opened = self._line.post(self.number, "open", list(trainable) if trainable else None)
        endpoint = self._line.post(self.number, "endpoint", (AGENT, AGENT, None))
        answered("open", await asyncio.wrap_future(opened))
        self._endpoints.know(AGENT, answered("endpoint", await asyncio.wrap_future(endpoint)))
        self.stage = "execute"
        return self._endpoints

    def prints(self, text: str) -> None:
        """Told line by line, as long as it is not too much."""
        if self._talk.tail.add(text):
            self.flush()

    def flush(self) -> None:
        """Send what is left of its prints."""
        self._line.say(self._talk)


class Threads(ThreadIsolation):
    """The threads of attempts whose `execute` is a plain function."""

    def _run(self, attempt: Any, *more: Any) -> None:
        speaks.set(attempt)
        super()._run(attempt, *more)


class Loops(LoopIsolation):
    """The loop here: says when an attempt's task is really over."""

    def __init__(self, plays: SharedPlayer, owner: int) -> None:
        super().__init__()
        self._threads = Threads()
        self._plays, self._owner = plays, owner

    async def _noted(self, attempt: Any) -> WorkflowOutput:
        speaks.set(attempt)
        try:
            with forks_end_here(self._owner):
                return await super()._noted(attempt)
        finally:
            self._plays.left(attempt)


class SharedPlayer:
    """Plays attempts with the workflow of one home."""

    def __init__(self, line: SharedLine, home: Home) -> None:
        self._line, self._home = line, home
        self._listens = threading.get_ident()
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
        attempt: SharedAttempt | None = None
        try:
            self._config = decode_settings(body) or self._config  # told once, whatever becomes of this attempt
            task, _, began = decode_attempt(body)
            if self._workflow_class is None:
                home = self._home
                self._workflow_class = resolve_reference(home.reference, base=home.base, what=KEY, made=as_workflow)
            attempt = SharedAttempt(self._line, number, self._workflow_class, task, self._config, began)
            future = self._loops.start(attempt)  # type: ignore[arg-type]
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs: a module that is imported
            self._end(number, attempt, classify(problem, "construct"))
            return
        self._attempts[number] = attempt, future
        future.add_done_callback(lambda done: self._done(attempt, done))

    def _done(self, attempt: SharedAttempt, future: Future[WorkflowOutput]) -> None:
        """The attempt's future is done: it has an outcome, or it was stopped and its task may go on."""
        if future.cancelled():
            if attempt.left:
                self._end(attempt.number, attempt, failed("stopped", "it was stopped", boundary="ajet").failure)
            return
        problem = future.exception()
        if os.getpid() != self._line.owner:
            end_fork(problem)
        self._end(
            attempt.number,
            attempt,
            future.result() if problem is None else classify(problem, attempt.stage, attempt.task.task),
        )

    def left(self, attempt: SharedAttempt) -> None:
        """The attempt's task is over."""
        attempt.left = True
        found = self._attempts.get(attempt.number)
        if found is not None and found[1].cancelled():
            self._done(*found)

    def _end(self, number: int, attempt: SharedAttempt | None, outcome: WorkflowOutput | Failure) -> None:
        """Say how it ended: what ends while it is begun or stopped, by a thread beside."""
        self._attempts.pop(number, None)
        if threading.get_ident() == self._listens:
            threading.Thread(target=self._say_end, args=(number, attempt, outcome), daemon=True).start()
        else:
            self._say_end(number, attempt, outcome)

    def _say_end(self, number: int, attempt: SharedAttempt | None, outcome: WorkflowOutput | Failure) -> None:
        if attempt is not None:
            attempt.flush()
        self._line.ended(number, last_words(outcome, []))

    def stands(self, number: int) -> str:
        """See Isolation."""
        found = self._attempts.get(number)
        return "" if found is None else self._loops.stands(found[0])  # type: ignore[arg-type]

    def close_beside(self) -> Sequence[threading.Thread]:
        """Close what attempts opened."""
        held = [attempt.resources for attempt, _ in tuple(self._attempts.values()) if attempt.resources.holds]
        return [resources.close_beside() for resources in held]


def player_that_logs(line: SharedLine, home: Home) -> SharedPlayer:
    """What an attempt logs is printed in its name; a warning of nobody's is told, for the log of the run."""
    talk = Talk(OF_NOBODY, "warning")

    def warn(text: str) -> None:
        if talk.tail.add(text):
            line.say(talk)

    logger.remove()
    logger.add(sys.stderr)
    logger.add(warn, level="WARNING", format="{message}", filter=lambda _: speaks.get() is None)
    return SharedPlayer(line, home)


if __name__ == "__main__":
    sys.stdout, sys.stderr = Prints(sys.stdout), Prints(sys.stderr)
    with rare_collections():
        serve(SharedLine, player_that_logs)
