"""An attempt inside a worker, with remote access to the session in the rollout's process.

Invariants: the worker holds no keys but the attempt's keys, requested over the channel. An output is checked before
sending. An output that cannot leave the process is therefore the attempt's own failure.
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

from ajet.environment.pinned import ToolList
from ajet.environment.replay import ReplayMissError
from ajet.record.tool_uses import bound_arguments, bound_tool_use
from ajet.rollout.attempt import AttemptBase
from ajet.rollout.failure import EpisodeError, make_error
from ajet.rollout.isolation.channel import MAX_MESSAGE_BYTES
from ajet.rollout.isolation.messages import encode_failure, encode_output
from ajet.rollout.isolation.worker_channel import WorkerChannel, read_reply
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import ToolUse
from ajet.workflow.ambient import AGENT


class RemoteEndpoints:
    """The schema's `Endpoints`, with each request answered by the process that holds the session."""

    def __init__(self, channel: WorkerChannel, attempt: int) -> None:
        self._channel, self._attempt = channel, attempt
        self._lock = threading.Lock()
        self._known_endpoints: dict[tuple[str, str, str | None], Endpoint] = {}

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint:
        """Return the agent's endpoint, requested at the first call."""
        key = (agent_name, target_tag, debug_model)
        if key not in self._known_endpoints:
            with self._lock:
                if key not in self._known_endpoints:
                    self._known_endpoints[key] = self.ask("endpoint", key)
        return self._known_endpoints[key]

    def add(self, agent: str, endpoint: Endpoint) -> None:
        """Store an agent's endpoint from an earlier reply."""
        self._known_endpoints[agent, agent, None] = endpoint

    def context_full(self) -> bool:
        """Return True if a request or a reply did not fit the context."""
        return bool(self.ask("context_full", None))

    def tool_used(self, use: ToolUse) -> None:
        """Record a use of a tool. No message is sent from a forked process or after the attempt's end."""
        use = bound_tool_use(use)  # shortened here, because the channel refuses messages over its maximum size
        try:
            self.ask("tool_used", use)
        except EpisodeError:
            if self._channel.is_open(self._attempt):
                raise

    def pinned(self, tools: ToolList) -> list[dict[str, Any]]:
        """Return the found tools in the order of the run's first attempt. Raises EpisodeError if the tools changed."""
        pinned: list[dict[str, Any]] = self.ask("pin", [dict(tool) for tool in tools])
        return pinned

    def ask(self, kind: str, value: Any) -> Any:
        """Send a request and wait for the reply. Raises EpisodeError."""
        return self._channel.ask(self._attempt, kind, value)


class RemoteReplay:
    """Recorded tool results for an attempt in a worker process. It asks the run's own process, which has the record."""

    def __init__(self, endpoints: RemoteEndpoints) -> None:
        self._endpoints = endpoints

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> ToolUse | None:
        """Return the recorded use of the tool, or None to call the tool. Raises ReplayMissError."""
        recorded: ToolUse | None = self._ask_replay("replay", (name, bound_arguments(arguments)))
        return recorded

    def tools(self) -> list[dict[str, Any]] | None:
        """Return the recorded tools of the replayed episode."""
        schemas: list[dict[str, Any]] | None = self._ask_replay("replayed_tools", None)
        return schemas

    def _ask_replay(self, kind: str, value: Any) -> Any:
        """Send a request about the recorded run. A missing record, reported as a failure, is raised as ReplayMissError
        again.
        """
        try:
            return self._endpoints.ask(kind, value)
        except EpisodeError as problem:
            if problem.failure.kind == ReplayMissError.__name__:
                raise ReplayMissError(problem.failure.message) from problem
            raise


class WorkerAttempt(AttemptBase):
    """An attempt inside a worker. The rollout's process holds the session."""

    def __init__(
        self,
        channel: WorkerChannel,
        number: int,
        workflow_class: type[Any],
        task: WorkflowTask,
        config: Any,
        started_at: float,
        enter: Callable[[Endpoint], None] | None = None,
    ) -> None:
        """Prepare the attempt inside the worker.

        Args:
            started_at: Start of the attempt, in seconds since the epoch.
            enter: Called with the default agent's endpoint when the session is open.
        """
        self.number, self.endpoints = number, RemoteEndpoints(channel, number)
        replay = RemoteReplay(self.endpoints) if config.ajet.environment.replay else None
        super().__init__(workflow_class, task, config, replay, self.endpoints.pinned)
        self._channel = channel
        self._started_at = started_at
        self._on_agent_endpoint = enter

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start, by the system clock, because another process measured the start."""
        return max(0.0, time.time() - self._started_at)

    def open(self, trainable: Collection[str] | None) -> RemoteEndpoints:
        """Request the session. The calling thread waits."""
        self.stage = "open"
        self.endpoints.ask("open", list(trainable) if trainable else None)
        if self._on_agent_endpoint is not None:
            self._on_agent_endpoint(self.endpoints(AGENT, AGENT, None))
        self.stage = "execute"
        return self.endpoints

    async def aopen(self, trainable: Collection[str] | None) -> RemoteEndpoints:
        """Request the session and the endpoint needed next by most agents, without blocking the event loop."""
        self.stage = "open"
        reply = self._channel.post(self.number, "open", list(trainable) if trainable else None)
        endpoint = self._channel.post(self.number, "endpoint", (AGENT, AGENT, None))
        read_reply("open", await asyncio.wrap_future(reply))
        self.endpoints.add(AGENT, read_reply("endpoint", await asyncio.wrap_future(endpoint)))
        if self._on_agent_endpoint is not None:
            self._on_agent_endpoint(self.endpoints(AGENT, AGENT, None))
        self.stage = "execute"
        return self.endpoints


def encode_end(outcome: WorkflowOutput | Failure, changes: list[str]) -> bytes:
    """Return the body of `ended`. `changes` describes the changes left in the process by the attempt."""
    if isinstance(outcome, Failure):
        return encode_failure(outcome, changes)
    try:
        body = encode_output(outcome, changes)
    except Exception as problem:  # noqa: BLE001 - the border where user code runs: objects of the user encode themselves
        return _refuse_output(f"the workflow's output cannot be sent from its process: {problem}", changes)
    if len(body) > MAX_MESSAGE_BYTES:
        return _refuse_output(
            f"the workflow's output is {len(body)} bytes long; its process can send at most {MAX_MESSAGE_BYTES}",
            changes,
        )
    return body


def _refuse_output(why: str, changes: list[str]) -> bytes:
    """Return the body of `ended` for an output that cannot be sent: the attempt fails for the reason `why`."""
    return encode_failure(make_error("wrong_type", why).failure, changes)


@contextmanager
def exit_forks(owner: int) -> Iterator[None]:
    """Exit a process forked by user code when it leaves this block, as at the end of a program.

    No `finally` block of ajet runs in the fork: the copies of the event loop and of clients belong to the parent.
    """
    try:
        yield
    except BaseException as ending:
        if os.getpid() != owner:
            exit_fork(ending)
        raise
    if os.getpid() != owner:
        exit_fork(None)


def exit_fork(ending: BaseException | None) -> NoReturn:
    """Exit this process, a fork by user code, with the exit code for the exception."""
    cause = ending.__cause__ if isinstance(ending, EpisodeError) and ending.__cause__ is not None else ending
    if cause is None:
        os._exit(0)
    if isinstance(cause, SystemExit):
        code = 0 if cause.code is None else cause.code if isinstance(cause.code, int) else 1
        os._exit(code & 0xFF)
    with suppress(OSError, ValueError):
        traceback.print_exception(cause)
    os._exit(1)
