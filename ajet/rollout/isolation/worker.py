"""The other side of `process`: a program that runs one attempt after the other.

Invariants: it holds no key but those of the attempt at hand and asks for them over its pipe; every message bears the
number of the attempt that it is about; only this very process speaks on the pipe: one that user code forked from it has
no pipe, and ends where that code ends. It says what an attempt left changed. It ends its whole family when the process
that started it is gone. Arguments: the numbers of the connection, and of a pipe that lives as long as that process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil

from ajet.config import resolve_reference
from ajet.rollout.attempt import is_plain, perform, perform_plain
from ajet.rollout.failure import EpisodeFailed, Stage, classify, failed
from ajet.rollout.isolation.family import adopt_orphans, end_descendants
from ajet.rollout.isolation.process import GRACE, LONGEST, Home
from ajet.rollout.isolation.surroundings import Surroundings
from ajet.rollout.isolation.thread import DaemonThreads
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowTask
from ajet.workflow.ambient import AGENT, entering
from ajet.workflow.function import KEY, as_workflow
from ajet.workflow.resources import Resources


class Line:
    """This process's end of the pipe; `attempt` is the number of the one that may ask. Thread-safe."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)
        self._connection = Connection(number)
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self.attempt = 0
        os.register_at_fork(after_in_child=self._cut)

    def hear(self) -> Any:
        """The next message. Raises EOFError when the other side is gone."""
        return self._connection.recv()

    def ask(self, attempt: int, kind: str, value: Any) -> Any:
        """One question, one answer. Raises EpisodeFailed."""
        if os.getpid() != self.owner:
            raise failed("forked", "a forked process asked for a model: make its client before the fork")
        with self._lock:
            if attempt != self.attempt:
                raise failed("stopped", "its episode is over", boundary="ajet")
            self._connection.send((attempt, kind, value))
            number, good, answer = self._connection.recv()
        if number != attempt:
            os._exit(os.EX_PROTOCOL)
        if good == "ok":
            return answer
        raise EpisodeFailed(answer) if isinstance(answer, Failure) else failed("endpoint", answer, boundary="ajet")

    def end(self, message: bytes) -> None:
        """The last word of an attempt: nobody asks in its name after it."""
        with self._lock:
            self.attempt = 0
            self._connection.send_bytes(message)

    def _cut(self) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._connection.fileno(), inheritable=False)
        os.close(nothing)


class FarEndpoints:
    """The schema's `Endpoints`, answered by the process that holds the session."""

    def __init__(self, line: Line, attempt: int) -> None:
        self._line, self._attempt = line, attempt
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str | None], Endpoint] = {}

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """Ask once, then remember."""
        asked = (agent_name, target_tag, debug_model)
        if asked not in self._known:
            with self._lock:
                if asked not in self._known:
                    self._known[asked] = self.ask("endpoint", asked)
        return self._known[asked]

    def context_full(self) -> bool:
        """See the schema's `Endpoints`."""
        return bool(self.ask("context_full", None))

    def ask(self, kind: str, value: Any) -> Any:
        """One question, one answer. Raises EpisodeFailed."""
        return self._line.ask(self._attempt, kind, value)


class FarAttempt:
    """What `perform` needs of an Attempt, on this side."""

    def __init__(self, workflow_class: type[Any], task: WorkflowTask, config: Any, endpoints: FarEndpoints) -> None:
        self.workflow_class, self.task, self.config = workflow_class, task, config
        self.stage: Stage = "construct"
        self.resources = Resources()
        self._endpoints = endpoints

    def open(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Have the session opened."""
        self.stage = "open"
        self._endpoints.ask("open", list(trainable) if trainable else None)
        entering(self._endpoints(AGENT, AGENT, None))
        self.stage = "execute"
        return self._endpoints


@contextmanager
def forks_end_here(owner: int) -> Iterator[None]:
    """A process that user code forked leaves this block by ending, as it would at the end of a program. No `finally`
    of ours runs in it: the event loop and the clients that it has copies of are its parent's."""
    try:
        yield
    except BaseException as ending:
        if os.getpid() != owner:
            _end_as_program(ending)
        raise
    if os.getpid() != owner:
        os._exit(0)


def _end_as_program(ending: BaseException) -> None:
    cause = ending.__cause__ if isinstance(ending, EpisodeFailed) and ending.__cause__ is not None else ending
    if isinstance(cause, SystemExit):
        code = 0 if cause.code is None else cause.code if isinstance(cause.code, int) else 1
        os._exit(code & 0xFF)
    with suppress(OSError, ValueError):
        traceback.print_exception(cause)
    os._exit(1)


async def _perform(attempt: FarAttempt, owner: int) -> Any:
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    with forks_end_here(owner):
        return await perform(attempt)


class Player:
    """Plays attempts with the workflow of one home."""

    def __init__(self, line: Line, home: Home) -> None:
        self._line, self._home = line, home
        self.attempt: FarAttempt | None = None
        """The one at hand."""
        entering(home.ambient)

    def play(self, number: int, task: WorkflowTask, config: Any) -> bytes:
        """One attempt; answers the message to send."""
        self._line.attempt = number
        before, outcome = self._outcome(number, task, config)
        with suppress(OSError, ValueError):  # user code may have closed it
            sys.stdout.flush()
        entering(self._home.ambient)
        left = before.left() if before is not None else []
        try:
            message = pickle.dumps((number, "ended", (*outcome, left)))
        except Exception as problem:  # noqa: BLE001 - the border where user code runs: its objects pickle themselves
            return _refused(number, f"the output cannot leave its process: {problem}", left)
        if len(message) > LONGEST:
            return _refused(number, f"the output is {len(message)} bytes long; at most {LONGEST} leave a process", left)
        return message

    def _outcome(self, number: int, task: WorkflowTask, config: Any) -> tuple[Surroundings | None, tuple[str, Any]]:
        attempt: FarAttempt | None = None
        before: Surroundings | None = None
        owner = self._line.owner
        endpoints = FarEndpoints(self._line, number)
        try:
            with forks_end_here(owner):
                workflow_class = resolve_reference(
                    self._home.reference, base=self._home.base, what=KEY, made=as_workflow
                )
                from ajet.workflow import tuner  # noqa: F401 - what ajet itself loads is no change of the attempt's

                before = Surroundings.now()
                attempt = self.attempt = FarAttempt(workflow_class, task, config, endpoints)
                if is_plain(attempt):
                    return before, ("output", perform_plain(attempt))
                return before, ("output", asyncio.run(_perform(attempt, owner)))
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs
            return before, ("failed", classify(problem, attempt.stage if attempt else "construct"))


def _refused(number: int, why: str, left: list[str]) -> bytes:
    return pickle.dumps((number, "ended", ("failed", failed("wrong_type", why).failure, left)))


def main() -> None:
    """Serve until the pipe closes."""
    line = Line(int(sys.argv[1]))
    life = int(sys.argv[2])
    os.set_inheritable(life, False)
    adopt_orphans()
    player = Player(line, line.hear())
    threading.Thread(target=_end_when_told, args=(life, player), daemon=True).start()
    while True:
        try:
            number, task, config = line.hear()
        except EOFError:
            return
        line.end(player.play(number, task, config))


def _end_when_told(life: int, player: Player) -> None:
    """When the process that started this one stops the attempt at hand, or is gone: what the attempt opened is closed.
    Then that process ends this one, which stands still to say that it may, or this one ends itself."""
    told = os.read(life, 1)
    if player.attempt is not None:
        player.attempt.resources.close_beside().join(GRACE)
    if told:
        os.kill(os.getpid(), signal.SIGSTOP)
    end_descendants(psutil.Process())
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
