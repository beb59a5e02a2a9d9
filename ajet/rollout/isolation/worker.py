"""The other side of `process` and `sandbox`: a program that runs one attempt after the other.

Invariants: it holds no key but those of the attempt at hand and asks for them over its channel; every message bears the
number of the attempt that it is about; only this very process speaks there: one that user code forked from it has no
channel. It says what an attempt left changed. How it begins and ends: `worker_life`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ajet.config import resolve_reference
from ajet.environment.pinned import Pin, Told
from ajet.environment.replay import ReplayMiss
from ajet.record.tool_uses import bounded, kept
from ajet.rollout.attempt import is_plain, perform, perform_plain
from ajet.rollout.failure import EpisodeFailed, Stage, classify, failed
from ajet.rollout.isolation.channel import LONGEST, Channel, Message
from ajet.rollout.isolation.frames import stands
from ajet.rollout.isolation.messages import (
    Home,
    decode_answer,
    decode_attempt,
    decode_failure,
    encode_failure,
    encode_output,
    encode_question,
)
from ajet.rollout.isolation.surroundings import Surroundings
from ajet.rollout.isolation.thread import DaemonThreads
from ajet.rollout.isolation.worker_life import forks_end_here, serve
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse
from ajet.workflow.ambient import AGENT, entering
from ajet.workflow.function import KEY, as_workflow
from ajet.workflow.resources import Resources
from ajet.workflow.tools import Replayed


class Line:
    """This process's end of the channel; `attempt` is the number of the one that may ask. Thread-safe."""

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)
        self._number = number
        self._channel = Channel(number, number)
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self.attempt = 0
        os.register_at_fork(after_in_child=self._cut)

    def hear(self) -> Message:
        """The next message. Raises EOFError when the other side is gone."""
        return self._channel.receive()

    def ask(self, attempt: int, kind: str, value: Any) -> Any:
        """Ask one question and wait for its answer. Raises EpisodeFailed."""
        if os.getpid() != self.owner:
            raise failed("forked", "a forked process asked for a model: make its client before the fork")
        body = encode_question(kind, value)
        with self._lock:
            if attempt != self.attempt:
                raise over()
            self._channel.send(attempt, kind, body)
            answer = self._channel.receive()
        if answer.about != attempt:
            os._exit(os.EX_PROTOCOL)
        return answered(kind, answer)

    def open_for(self, attempt: int) -> bool:
        """Whether this very process may still speak of that attempt."""
        return os.getpid() == self.owner and attempt == self.attempt

    def end(self, body: bytes) -> None:
        """The last word of an attempt: nobody asks in its name after it."""
        with self._lock:
            ended, self.attempt = self.attempt, 0
            self._channel.send(ended, "ended", body)

    def _cut(self) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._number, inheritable=False)
        os.close(nothing)


def over() -> EpisodeFailed:
    """The error for a question in the name of an attempt that has ended."""
    return failed("stopped", "its episode is over", boundary="ajet")


def answered(kind: str, answer: Message) -> Any:
    """The value of the answer to a question of that kind. Raises EpisodeFailed."""
    if answer.kind == "ok":
        return decode_answer(kind, answer.body)
    if answer.kind == "failed":
        raise EpisodeFailed(decode_failure(answer.body))
    raise failed("endpoint", answer.body, boundary="ajet")


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

    def know(self, agent: str, endpoint: Endpoint) -> None:
        """Keep an agent's endpoint, which was asked for already."""
        self._known[agent, agent, None] = endpoint

    def context_full(self) -> bool:
        """See the schema's `Endpoints`."""
        return bool(self.ask("context_full", None))

    def tool_used(self, use: ToolUse) -> None:
        """See the schema's `Endpoints`. A forked process has no way to say so."""
        use = kept(use)  # before the channel, on which a message has a longest size
        try:
            self.ask("tool_used", use)
        except EpisodeFailed:
            if self._line.open_for(self._attempt):
                raise

    def pinned(self, found: Told) -> list[dict[str, Any]]:
        """See `ajet.environment.pinned.Pin`."""
        pinned: list[dict[str, Any]] = self.ask("pin", [dict(each) for each in found])
        return pinned

    def ask(self, kind: str, value: Any) -> Any:
        """Ask one question and wait for its answer. Raises EpisodeFailed."""
        return self._line.ask(self._attempt, kind, value)


class FarReplay:
    """The `Replayed` of an attempt, on this side."""

    def __init__(self, endpoints: FarEndpoints) -> None:
        self._endpoints = endpoints

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolUse | None:
        """See `ajet.environment.replay.Walk`. Raises ReplayMiss."""
        found: ToolUse | None = self._asked("replay", (name, bounded(arguments)))
        return found

    def tools(self) -> list[dict[str, Any]] | None:
        """The recorded tools of the replayed episode."""
        found: list[dict[str, Any]] | None = self._asked("replayed_tools", None)
        return found

    def _asked(self, kind: str, value: Any) -> Any:
        try:
            return self._endpoints.ask(kind, value)
        except EpisodeFailed as problem:
            if problem.failure.kind == ReplayMiss.__name__:
                raise ReplayMiss(problem.failure.message) from problem
            raise


class FarAttempt:
    """The part of an attempt that `perform` needs, on this side."""

    def __init__(
        self, workflow_class: type[Any], task: WorkflowTask, config: Any, endpoints: FarEndpoints, began: float
    ) -> None:
        self._began = began
        self.workflow_class, self.task, self.config = workflow_class, task, config
        self.stage: Stage = "construct"
        self.resources = Resources()
        self.running: asyncio.Task[Any] | None = None
        """Where its code is asynchronous and has begun."""
        self._endpoints = endpoints
        self.replay: Replayed | None = FarReplay(endpoints) if config.ajet.environment.replay else None
        self.pin: Pin = endpoints.pinned

    @property
    def passed(self) -> float:
        """See `Performable`. By the system clock: another process, which may be in a container, says when it began."""
        return max(0.0, time.time() - self._began)

    def open(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Have the session opened."""
        self.stage = "open"
        self._endpoints.ask("open", list(trainable) if trainable else None)
        entering(self._endpoints(AGENT, AGENT, None))
        self.stage = "execute"
        return self._endpoints

    async def aopen(self, trainable: Collection[str] | None) -> FarEndpoints:
        """Open the endpoints, for code on an event loop."""
        return self.open(trainable)


async def _perform(attempt: FarAttempt, owner: int) -> WorkflowOutput:
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    attempt.running = asyncio.current_task()
    with forks_end_here(owner):
        return await perform(attempt)


class Player:
    """Plays attempts with the workflow of one home."""

    def __init__(self, line: Line, home: Home) -> None:
        self._line, self._home = line, home
        self.attempt: FarAttempt | None = None
        """The one at hand."""
        entering(home.ambient)

    def hear(self, message: Message) -> None:
        """An attempt: play it to its end, and say how it ended."""
        self._line.end(self._play(message.about, *decode_attempt(message.body)))

    def _play(self, number: int, task: WorkflowTask, config: Any, began: float) -> bytes:
        self._line.attempt = number
        before, outcome = self._outcome(number, task, config, began)
        with suppress(OSError, ValueError):  # user code may have closed it
            sys.stdout.flush()
        entering(self._home.ambient)
        return last_words(outcome, before.left() if before is not None else [])

    def stands(self, number: int) -> str:
        """See Isolation; of the attempt at hand."""
        task = self.attempt.running if self.attempt is not None else None
        return stands(threading.main_thread().ident, task)

    def close_beside(self) -> Sequence[threading.Thread]:
        """Close what the attempt at hand opened."""
        return [] if self.attempt is None else [self.attempt.resources.close_beside()]

    def _outcome(
        self, number: int, task: WorkflowTask, config: Any, began: float
    ) -> tuple[Surroundings | None, WorkflowOutput | Failure]:
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
                attempt = self.attempt = FarAttempt(workflow_class, task, config, endpoints, began)
                if is_plain(attempt):
                    return before, perform_plain(attempt)
                return before, asyncio.run(_perform(attempt, owner))
        except BaseException as problem:  # noqa: BLE001 - the border where user code runs
            return before, classify(problem, attempt.stage if attempt else "construct", task.task)


def last_words(outcome: WorkflowOutput | Failure, left: list[str]) -> bytes:
    """The message that an attempt has ended. `left`: what it left changed."""
    if isinstance(outcome, Failure):
        return encode_failure(outcome, left)
    try:
        body = encode_output(outcome, left)
    except Exception as problem:  # noqa: BLE001 - the border where user code runs: its objects speak for themselves
        return _refused(f"the output cannot leave its process: {problem}", left)
    if len(body) > LONGEST:
        return _refused(f"the output is {len(body)} bytes long; at most {LONGEST} leave a process", left)
    return body


def _refused(why: str, left: list[str]) -> bytes:
    return encode_failure(failed("wrong_type", why).failure, left)


if __name__ == "__main__":
    serve(Line, Player)
