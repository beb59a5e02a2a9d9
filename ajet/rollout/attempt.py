"""Attempt: one try at an episode, with the attempt's identity, the function running the workflow, and the result.

Invariants: ids depend only on the place in the run, so playing a step again writes no second episode. A workflow
instance serves one attempt. The session is opened after the instance exists, because the instance's `trainable_targets`
count. The rollout closes the session exactly once; an attempt closed before opening a session never opens one. The
attempt's resources are closed with the attempt (`Resources`).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.environment.pinned import Pin, ToolPins
from ajet.rollout.failure import Stage, make_error
from ajet.schema.endpoint import Endpoints
from ajet.schema.episode import Failure, Split
from ajet.schema.errors import EnvironmentFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import use_endpoints
from ajet.workflow.function import is_of_function
from ajet.workflow.resources import Deadline, Resources, aclosing, closing
from ajet.workflow.tools import Replayed
from ajet.workflow.workflow import Workflow

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.contract import Sampling
    from ajet.environment.replay import ReplayWalk
    from ajet.gateway import Capture, Gateway, Session
    from ajet.schema.call import Call
    from ajet.workflow.tuner import ModelTuner

T = TypeVar("T")
NAMESPACE = uuid.UUID("6f1f2d3c-8a35-5b0e-9c47-1f7a5c0e7d11")


@dataclass(frozen=True, slots=True)
class Identity:
    """Names one episode of a run by split, step, task, position in the training order, and repeat."""

    run: str
    split: Split
    step: int
    task: Task
    order: int
    index: int
    """Index of the task in the running play"""
    repeat: int

    @property
    def uuid(self) -> str:
        """The episode's id, a hash of run, split, step, position and repeat.

        A resumed run that plays the same episode again therefore gets the same id.
        """
        return uuid.uuid5(NAMESPACE, f"{self._group_path()}/{self.repeat}").hex

    @property
    def group(self) -> str:
        """The group's id, equal for all repeats of the task, also when the repeats are played again."""
        return uuid.uuid5(NAMESPACE, self._group_path()).hex

    def _group_path(self) -> str:
        return f"{self.run}/{self.split}/{self.step}/{self.order}"

    def make_task(self) -> WorkflowTask:
        """Build the `WorkflowTask` that `execute` and the judge receive."""
        return WorkflowTask(
            task=self.task,
            episode_uuid=self.uuid,
            task_id=self.task.task_id,
            env_type=self.task.env_type,
            task_batch_index=self.index,
            task_thread_index=self.repeat,
            task_tag=f"T{self.task.task_id}#R{self.repeat}",
            step=self.step,
        )


@dataclass(slots=True)
class AttemptResult:
    """Holds the result of an attempt, from which the episode is built.

    Exactly one of output, failure and aborted is set, unless a check ended the attempt (`capture.terminated`).
    """

    output: WorkflowOutput | None = None
    failure: Failure | None = None
    aborted: str | None = None
    """The reason why ajet stopped the attempt. None if the attempt was not stopped."""
    capture: Capture | None = None
    started: float = 0.0
    ended: float = 0.0
    since: float = field(default_factory=time.monotonic)
    """Start of the attempt by the monotonic clock of this process, for limits. The record uses the system clock."""
    attempts: int = 1
    task: WorkflowTask | None = None
    """The workflow's task. None if no workflow was started."""
    printed: str = ""
    """Standard output of the workflow, if the isolation captures output."""

    @classmethod
    def of(cls, outcome: WorkflowOutput | Failure) -> AttemptResult:
        """Return the result of an attempt that an external agent played, from the agent's output or its failure."""
        return cls(output=outcome) if isinstance(outcome, WorkflowOutput) else cls(failure=outcome)


def open_session(
    gateway: Gateway,
    settings: AjetConfig,
    inspect: Callable[[Call, dict[str, Any]], list[str]] | None,
    identity: Identity,
    *,
    sampling: Sampling,
    trainable: Collection[str] | None,
    started_at: float,
) -> Session:
    """Open the gateway session of an attempt.

    Args:
        inspect: Checks of replies, from `open_checks`.
        trainable: Names of the agents to train. None: all agents.
        started_at: Start of the attempt by the system clock.
    """
    return gateway.open(
        identity.uuid,
        key=(settings.seed, identity.order, identity.repeat),
        sampling=sampling,
        trainable=trainable,
        inspect=inspect,
        terminate_on_inspect=settings.rollout.agent_madness_termination,
        started_at=started_at,
    )


async def call_on_gateway(gateway: Gateway, function: Callable[[], T]) -> T:
    """Call a function on the gateway's event loop and await the result.

    A blocking wait for the gateway would delay all episodes of the calling loop.
    """

    async def call() -> T:
        return function()

    return await asyncio.wrap_future(gateway.call(call()))


class AttemptBase(ABC):
    """Base of one attempt at a task: `LocalAttempt` in the rollout's process, `WorkerAttempt` in a worker."""

    def __init__(
        self, workflow_class: type[Any], task: WorkflowTask, config: Any, replay: Replayed | None, pin: Pin
    ) -> None:
        """Prepare the attempt.

        Args:
            replay: Recorded tool uses that answer instead of the tools. None: the tools are called.
            pin: Checks that the offered tools are those of the run's first attempt, and returns them in that attempt's
                order.
        """
        self.workflow_class = workflow_class
        self.task = task
        self.config = config
        self.replay, self.pin = replay, pin
        self.stage: Stage = "construct"
        self.resources = Resources()
        """Resources opened by the attempt in this process."""

    @property
    @abstractmethod
    def elapsed_seconds(self) -> float:
        """Seconds since the attempt began."""

    @abstractmethod
    def open(self, trainable: Collection[str] | None) -> Endpoints:
        """Open the attempt's session. May block the thread.

        Args:
            trainable: Targets to train. None or an empty collection trains every agent.
        """

    @abstractmethod
    async def aopen(self, trainable: Collection[str] | None) -> Endpoints:
        """Open the attempt's session without blocking the event loop.

        Args:
            trainable: Targets to train, as in `open`.
        """


class LocalAttempt(AttemptBase):
    """One attempt at a task, as isolations run the attempt. `open` and `close` may be called from any thread."""

    def __init__(
        self,
        workflow_class: type[Any],
        task: WorkflowTask,
        config: Any,
        open_session: Callable[[Collection[str] | None], Session],
        replay: ReplayWalk | None = None,
        pin: Pin | None = None,
    ) -> None:
        """Prepare the attempt.

        Args:
            open_session: Opens the gateway session for the given trainable targets.
            replay: Recorded tool uses that answer instead of the tools. None: the tools are called.
            pin: Checks the offered tools against those of the run's first attempt. None: against this attempt's own
                only.
        """
        super().__init__(workflow_class, task, config, replay, pin if pin is not None else ToolPins())
        self.began, self.since = time.time(), time.monotonic()
        self.session: Session | None = None
        self.printed = ""
        """Standard output of the workflow, if the isolation captures output."""
        self._replay_walk = replay
        self._open_session = open_session
        self._closed = False
        self._lock = threading.Lock()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the attempt began, by the monotonic clock."""
        return time.monotonic() - self.since

    def open(self, trainable: Collection[str] | None) -> Session:
        """Open the attempt's session. Raises EpisodeError once the attempt is closed."""
        self.stage = "open"
        with self._lock:
            if self._closed:
                raise make_error("stopped", "the episode was stopped before its workflow began", boundary="ajet")
            self.session = self._open_session(trainable)
            if self._replay_walk is not None:
                self.session.watch_uses(self._replay_walk.note_use)
        self.stage = "execute"
        return self.session

    async def aopen(self, trainable: Collection[str] | None) -> Session:
        """Open the attempt's session, for code on an event loop."""
        return self.open(trainable)

    def close(self) -> Capture | None:
        """Revoke the keys, abort running calls, and return the capture, or None if no session was opened."""
        with self._lock:
            self._closed = True
            session = self.session
        return session.close() if session is not None else None


def is_plain_attempt(attempt: AttemptBase) -> bool:
    """True if `execute` is a plain function, run in a thread without an event loop."""
    return not inspect.iscoroutinefunction(attempt.workflow_class.execute)


async def perform_attempt(attempt: AttemptBase) -> WorkflowOutput:
    """Run an async `execute` and return the output.

    Raises:
        EpisodeError: `execute` returned a wrong type. Exceptions of user code are raised unchanged.
    """
    with _fail_on_exit():
        async with aclosing(attempt.resources):
            workflow, trainable = _make_workflow(attempt)
            tuner = _make_tuner(attempt, await attempt.aopen(trainable), trainable)
            with use_endpoints(tuner.endpoints), _fail_if_environment_lost(attempt.task):
                return _check_output(workflow, await workflow.execute(attempt.task, tuner))


def perform_plain_attempt(attempt: AttemptBase) -> WorkflowOutput:
    """Run a plain `execute` and return the output. If `execute` returns an awaitable, await the awaitable."""
    with _fail_on_exit(), closing(attempt.resources):
        workflow, trainable = _make_workflow(attempt)
        tuner = _make_tuner(attempt, attempt.open(trainable), trainable)
        with use_endpoints(tuner.endpoints), _fail_if_environment_lost(attempt.task):
            output = workflow.execute(attempt.task, tuner)
            if inspect.isawaitable(output):
                output = asyncio.run(_await_output(output, attempt.resources))
        return _check_output(workflow, output)


def _make_workflow(attempt: AttemptBase) -> tuple[Any, Collection[str] | None]:
    """Create the workflow instance. Return it with the names of the agents to train, or None to train all agents."""
    workflow = attempt.workflow_class()
    if isinstance(workflow, Workflow):
        return workflow, workflow.choose_targets(attempt.config) or None
    return workflow, getattr(workflow, "trainable_targets", None) or None


def _make_tuner(attempt: AttemptBase, endpoints: Endpoints, trainable: Collection[str] | None) -> ModelTuner:
    """Return the `ModelTuner` that `execute` gets, with the attempt's endpoints, tools and time limits."""
    from ajet.workflow.tuner import ModelTuner

    limits = attempt.config.ajet.rollout
    tuner = ModelTuner(
        attempt.config,
        endpoints,
        trainable=trainable,
        resources=attempt.resources,
        replay=attempt.replay,
        pin=attempt.pin,
        deadline=Deadline(limits.episode_timeout, limits.tool_timeout, passed=attempt.elapsed_seconds),
    )
    if attempt.task.gym_env is not None:
        attempt.task.gym_env.on_use = tuner.tool_used
    return tuner


def _check_output(workflow: Any, output: Any) -> WorkflowOutput:
    """Return the output of `execute`. Raises EpisodeError for a value that is no WorkflowOutput."""
    if isinstance(output, WorkflowOutput):
        return output
    name, expected = f"{type(workflow).__name__}.execute", "a WorkflowOutput"
    if is_of_function(type(workflow)):
        name, expected = type(workflow).__name__, "text, a list, a dict, a number or a WorkflowOutput"
    if isinstance(output, tuple):
        raise make_error("wrong_type", f"{name} returned a tuple, which ajet cannot interpret; expected {expected}")
    if output is None:
        raise make_error("returned_nothing", f"{name} returned None; expected {expected}")
    kind = f"an object of the class {type(output).__name__}"
    if inspect.iscoroutine(output):
        kind = "a coroutine: the call that created it needs an `await`"
        output.close()  # otherwise Python warns later, and names a line of its own code
    raise make_error("wrong_type", f"{name} returned {kind}; expected {expected}")


async def _await_output(output: Awaitable[Any], resources: Resources) -> Any:
    """Await the output of a plain `execute`, then close the attempt's resources on the same event loop, to which they
    belong.
    """
    async with aclosing(resources):
        return await output


@contextmanager
def _fail_if_environment_lost(task: WorkflowTask) -> Iterator[None]:
    """Raise EnvironmentFailure after the block if the environment was lost meanwhile.

    It replaces an exception of the block, which user code may have raised because of the loss.
    """
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
def _fail_on_exit() -> Iterator[None]:
    """Turn `sys.exit` in user code into a failure. An exit must not end an event loop shared with other episodes."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as ending:
        raise make_error(
            type(ending).__name__, f"the workflow tried to end the program: {ending!r}", ended=ending
        ) from ending
