"""An attempt inside a worker, with the parts of a session that live in the rollout's process.

Invariants: it holds no key but those of its own attempt, and asks for them over the worker's channel; what it returns
is checked before it is sent, so that an output which cannot leave the process is the attempt's own failure.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ajet.environment.pinned import Told
from ajet.environment.replay import ReplayMiss
from ajet.record.tool_uses import bounded, kept
from ajet.rollout.attempt import AttemptBase
from ajet.rollout.failure import EpisodeError, make_error
from ajet.rollout.isolation.channel import LONGEST
from ajet.rollout.isolation.messages import encode_failure, encode_output
from ajet.rollout.isolation.worker_channel import WorkerChannel, read_reply
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse
from ajet.workflow.ambient import AGENT


class RemoteEndpoints:
    """The schema's `Endpoints`, answered by the process that holds the session."""

    def __init__(self, channel: WorkerChannel, attempt: int) -> None:
        self._channel, self._attempt = channel, attempt
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str | None], Endpoint] = {}

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """Return the endpoint, asking for it the first time."""
        key = (agent_name, target_tag, debug_model)
        if key not in self._known:
            with self._lock:
                if key not in self._known:
                    self._known[key] = self.ask("endpoint", key)
        return self._known[key]

    def add(self, agent: str, endpoint: Endpoint) -> None:
        """Store an agent's endpoint, which was asked for already."""
        self._known[agent, agent, None] = endpoint

    def context_full(self) -> bool:
        """See the schema's `Endpoints`."""
        return bool(self.ask("context_full", None))

    def tool_used(self, use: ToolUse) -> None:
        """See the schema's `Endpoints`. In a forked process, and after the attempt's end, nothing is sent."""
        use = kept(use)  # before the channel, on which a message has a longest size
        try:
            self.ask("tool_used", use)
        except EpisodeError:
            if self._channel.is_open(self._attempt):
                raise

    def pinned(self, found: Told) -> list[dict[str, Any]]:
        """See `ajet.environment.pinned.Pin`."""
        pinned: list[dict[str, Any]] = self.ask("pin", [dict(each) for each in found])
        return pinned

    def ask(self, kind: str, value: Any) -> Any:
        """Send a request and wait for its reply. Raises EpisodeError."""
        return self._channel.ask(self._attempt, kind, value)


class RemoteReplay:
    """The `Replayed` of an attempt, answered by the process that holds the recorded run."""

    def __init__(self, endpoints: RemoteEndpoints) -> None:
        self._endpoints = endpoints

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolUse | None:
        """See `ajet.environment.replay.Walk`. Raises ReplayMiss."""
        found: ToolUse | None = self._ask("replay", (name, bounded(arguments)))
        return found

    def tools(self) -> list[dict[str, Any]] | None:
        """Return the recorded tools of the replayed episode."""
        found: list[dict[str, Any]] | None = self._ask("replayed_tools", None)
        return found

    def _ask(self, kind: str, value: Any) -> Any:
        try:
            return self._endpoints.ask(kind, value)
        except EpisodeError as problem:
            if problem.failure.kind == ReplayMiss.__name__:
                raise ReplayMiss(problem.failure.message) from problem
            raise


class WorkerAttempt(AttemptBase):
    """An attempt inside a worker; the rollout's process holds its session."""

    def __init__(
        self,
        channel: WorkerChannel,
        number: int,
        workflow_class: type[Any],
        task: WorkflowTask,
        config: Any,
        began: float,
        enter: Callable[[Endpoint], None] | None = None,
    ) -> None:
        """
        Args:
            began: Seconds since the epoch at which the attempt's time began.
            enter: Called with the default agent's endpoint when the session is open.
        """
        self.number, self.endpoints = number, RemoteEndpoints(channel, number)
        replay = RemoteReplay(self.endpoints) if config.ajet.environment.replay else None
        super().__init__(workflow_class, task, config, replay, self.endpoints.pinned)
        self._channel, self._began, self._enter = channel, began, enter

    @property
    def passed(self) -> float:
        """Seconds of its time that are over, by the system clock: another process says when it began."""
        return max(0.0, time.time() - self._began)

    def open(self, trainable: Collection[str] | None) -> RemoteEndpoints:
        """Have the session opened; this thread waits."""
        self.stage = "open"
        self.endpoints.ask("open", list(trainable) if trainable else None)
        if self._enter is not None:
            self._enter(self.endpoints(AGENT, AGENT, None))
        self.stage = "execute"
        return self.endpoints

    async def aopen(self, trainable: Collection[str] | None) -> RemoteEndpoints:
        """Have the session opened, with the endpoint that most agents need next; the event loop goes on."""
        self.stage = "open"
        opened = self._channel.post(self.number, "open", list(trainable) if trainable else None)
        endpoint = self._channel.post(self.number, "endpoint", (AGENT, AGENT, None))
        read_reply("open", await asyncio.wrap_future(opened))
        self.endpoints.add(AGENT, read_reply("endpoint", await asyncio.wrap_future(endpoint)))
        if self._enter is not None:
            self._enter(self.endpoints(AGENT, AGENT, None))
        self.stage = "execute"
        return self.endpoints


def encode_end(outcome: WorkflowOutput | Failure, left: list[str]) -> bytes:
    """Return the body of `ended`. `left`: descriptions of what the attempt left changed."""
    if isinstance(outcome, Failure):
        return encode_failure(outcome, left)
    try:
        body = encode_output(outcome, left)
    except Exception as problem:  # noqa: BLE001 - the border where user code runs: its objects encode themselves
        return _refuse_output(f"the output cannot leave its process: {problem}", left)
    if len(body) > LONGEST:
        return _refuse_output(f"the output is {len(body)} bytes long; at most {LONGEST} leave a process", left)
    return body


def _refuse_output(why: str, left: list[str]) -> bytes:
    return encode_failure(make_error("wrong_type", why).failure, left)


@contextmanager
def ending_forks(owner: int) -> Iterator[None]:
    """End a process that user code forked where it leaves this block, as at the end of a program.

    No `finally` of ours runs in it: the event loop and the clients that it has copies of belong to its parent.
    """
    try:
        yield
    except BaseException as ending:
        if os.getpid() != owner:
            end_fork(ending)
        raise
    if os.getpid() != owner:
        end_fork(None)


def end_fork(ending: BaseException | None) -> NoReturn:
    """End this process, which user code forked, with the exit code that belongs to the exception."""
    cause = ending.__cause__ if isinstance(ending, EpisodeError) and ending.__cause__ is not None else ending
    if cause is None:
        os._exit(0)
    if isinstance(cause, SystemExit):
        code = 0 if cause.code is None else cause.code if isinstance(cause.code, int) else 1
        os._exit(code & 0xFF)
    with suppress(OSError, ValueError):
        traceback.print_exception(cause)
    os._exit(1)
