"""Attempt: one try at an episode, from making the workflow to its output, wherever an isolation runs it.

Invariants: a workflow instance serves one attempt; its session is opened after it exists (its `trainable_targets`
count) and is closed exactly once, by the rollout; an attempt that was closed before it came to open its session
never opens one. What it opened is closed with it (`Resources`).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ajet.environment.pinned import Pin, Pins
from ajet.rollout.failure import Stage, failed
from ajet.schema.endpoint import Endpoints
from ajet.schema.errors import EnvironmentFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import playing
from ajet.workflow.deadline import Deadline
from ajet.workflow.function import is_of_function
from ajet.workflow.resources import Resources, aclosing, closing
from ajet.workflow.tools import Replayed

if TYPE_CHECKING:
    from ajet.environment.replay import Walk
    from ajet.gateway import Capture, Session
    from ajet.workflow.tuner import ModelTuner


class Attempt:
    """One attempt at a task, as an isolation runs it. `open` and `close` may be called from any thread."""

    def __init__(
        self,
        workflow_class: type[Any],
        task: WorkflowTask,
        config: Any,
        open_session: Callable[[Collection[str] | None], Session],
        replay: Walk | None = None,
        pin: Pin | None = None,
    ) -> None:
        """`replay`: what answers in place of tools. `pin`: what pins them for the run."""
        self.workflow_class, self.task, self.config = workflow_class, task, config
        self.stage: Stage = "construct"
        self.began, self.since = time.time(), time.monotonic()
        self.session: Session | None = None
        self.resources = Resources()
        """What it opened in this process."""
        self.printed = ""
        """What the workflow printed, where the isolation keeps it."""
        self.replay = replay
        self.pin: Pin = pin if pin is not None else Pins()
        self._open_session = open_session
        self._closed = False
        self._lock = threading.Lock()

    @property
    def passed(self) -> float:
        """See `Performable`."""
        return time.monotonic() - self.since

    def open(self, trainable: Collection[str] | None) -> Session:
        """The attempt's session; None or no targets at all: every agent trains."""
        self.stage = "open"
        with self._lock:
            if self._closed:
                raise failed("stopped", "the episode was stopped before its workflow began", boundary="ajet")
            self.session = self._open_session(trainable)
            if self.replay is not None:
                self.session.watch_uses(self.replay.saw)
        self.stage = "execute"
        return self.session

    async def aopen(self, trainable: Collection[str] | None) -> Session:
        """Open the attempt's session, for code on an event loop."""
        return self.open(trainable)

    def close(self) -> Capture | None:
        """Revoke the keys, abort running calls, and take what was captured; None when no session was opened."""
        with self._lock:
            self._closed = True
            session = self.session
        return session.close() if session is not None else None


class Performable(Protocol):
    """The part of an attempt that `perform` needs."""

    workflow_class: type[Any]
    task: WorkflowTask
    config: Any
    resources: Resources

    @property
    def passed(self) -> float:
        """Seconds of its time that are over."""
        ...

    @property
    def replay(self) -> Replayed | None:
        """The recorded uses that answer in place of tools."""
        ...

    @property
    def pin(self) -> Pin:
        """The function that pins an answer of a tool for the run."""
        ...

    def open(self, trainable: Collection[str] | None) -> Endpoints:
        """The endpoints of its session."""
        ...

    async def aopen(self, trainable: Collection[str] | None) -> Endpoints:
        """Open the endpoints, for code on an event loop: others there go on meanwhile."""
        ...


def is_plain(attempt: Performable) -> bool:
    """Whether `execute` is a plain function: it then gets a thread without a running event loop."""
    return not inspect.iscoroutinefunction(attempt.workflow_class.execute)


async def perform(attempt: Performable) -> WorkflowOutput:
    """Run the user's code to its output. Raises whatever that code raises, and EpisodeFailed for a wrong return."""
    with no_exit():
        async with aclosing(attempt.resources):
            workflow, trainable = _made(attempt)
            tuner = _tuner(attempt, await attempt.aopen(trainable), trainable)
            with playing(tuner.endpoints), environment_kept(attempt.task):
                return _checked(workflow, await workflow.execute(attempt.task, tuner))


def perform_plain(attempt: Performable) -> WorkflowOutput:
    """Perform the attempt by a plain `execute`; one that returns a coroutine is run to its end."""
    with no_exit(), closing(attempt.resources):
        workflow, trainable = _made(attempt)
        tuner = _tuner(attempt, attempt.open(trainable), trainable)
        with playing(tuner.endpoints), environment_kept(attempt.task):
            output = workflow.execute(attempt.task, tuner)
            if inspect.isawaitable(output):
                output = asyncio.run(_closed(output, attempt.resources))
        return _checked(workflow, output)


def _made(attempt: Performable) -> tuple[Any, Collection[str] | None]:
    workflow = attempt.workflow_class()
    return workflow, getattr(workflow, "trainable_targets", None) or None


def _tuner(attempt: Performable, endpoints: Endpoints, trainable: Collection[str] | None) -> ModelTuner:
    from ajet.workflow.tuner import ModelTuner

    limits = attempt.config.ajet.rollout
    tuner = ModelTuner(
        attempt.config,
        endpoints,
        trainable=trainable,
        resources=attempt.resources,
        replay=attempt.replay,
        pin=attempt.pin,
        deadline=Deadline(limits.episode_timeout, limits.tool_timeout, passed=attempt.passed),
    )
    if attempt.task.gym_env is not None:
        attempt.task.gym_env.on_use = tuner.tool_used
    return tuner


def _checked(workflow: Any, output: Any) -> WorkflowOutput:
    if isinstance(output, WorkflowOutput):
        return output
    name, expected = f"{type(workflow).__name__}.execute", "a WorkflowOutput"
    if is_of_function(type(workflow)):
        name, expected = type(workflow).__name__, "text, a list, a dict, a number or a WorkflowOutput"
    if isinstance(output, tuple):
        raise failed("wrong_type", f"{name} returned a tuple, which is not read; expected {expected}")
    if output is None:
        raise failed("returned_nothing", f"{name} returned None; expected {expected}")
    given = f"an object of the class {type(output).__name__}"
    if inspect.iscoroutine(output):
        given = "a coroutine (an `await` is missing where it was made)"
        output.close()  # Python would warn of it, and name a line of its own
    raise failed("wrong_type", f"{name} returned {given}; expected {expected}")


async def _closed(output: Awaitable[Any], resources: Resources) -> Any:
    async with aclosing(resources):
        return await output


@contextmanager
def environment_kept(task: WorkflowTask) -> Iterator[None]:
    """An attempt whose environment was lost has failed by that, whatever its code made of it: a reward, an exception of
    its own. Raises EnvironmentFailure."""
    env = task.gym_env
    try:
        yield
    except Exception as problem:
        if (lost := getattr(env, "lost", None)) is not None:
            raise EnvironmentFailure(str(lost), retryable=lost.retryable) from problem
        raise
    if (lost := getattr(env, "lost", None)) is not None:
        raise EnvironmentFailure(str(lost), retryable=lost.retryable)


@contextmanager
def no_exit() -> Iterator[None]:
    """`sys.exit` in user code ends its episode, not the event loop that other episodes share."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as ending:
        raise failed(type(ending).__name__, f"the workflow ended the program: {ending!r}", ended=ending) from ending
