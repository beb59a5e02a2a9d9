"""Attempt: one try at an episode, from making the workflow to its output, wherever an isolation runs it.

Invariants: a workflow instance serves one attempt; its session is opened after it exists (its `trainable_targets`
count) and is closed exactly once, by the rollout; an attempt that was closed before it came to open its session
never opens one. What it opened is closed with it (`Resources`).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ajet.rollout.failure import Stage, failed
from ajet.schema.endpoint import Endpoints
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import playing
from ajet.workflow.resources import Resources, aclosing, closing

if TYPE_CHECKING:
    from ajet.gateway import Capture, Session
    from ajet.workflow.tuner import ModelTuner


class Attempt:
    """What an isolation is given to run. `open` and `close` may be called from any thread."""

    def __init__(
        self,
        workflow_class: type[Any],
        task: WorkflowTask,
        config: Any,
        open_session: Callable[[Collection[str] | None], Session],
    ) -> None:
        self.workflow_class, self.task, self.config = workflow_class, task, config
        self.stage: Stage = "construct"
        self.session: Session | None = None
        self.resources = Resources()
        """What it opened in this process."""
        self.printed = ""
        """What the workflow printed, where the isolation keeps it."""
        self._open_session = open_session
        self._closed = False
        self._lock = threading.Lock()

    def open(self, trainable: Collection[str] | None) -> Session:
        """The attempt's session; None or no targets at all: every agent trains."""
        self.stage = "open"
        with self._lock:
            if self._closed:
                raise failed("stopped", "the episode was stopped before its workflow began", boundary="ajet")
            self.session = self._open_session(trainable)
        self.stage = "execute"
        return self.session

    def close(self) -> Capture | None:
        """Revoke the keys, abort running calls, and take what was captured; None when no session was opened."""
        with self._lock:
            self._closed = True
            session = self.session
        return session.close() if session is not None else None


class Performable(Protocol):
    """What `perform` needs of an attempt."""

    workflow_class: type[Any]
    task: WorkflowTask
    config: Any
    resources: Resources

    def open(self, trainable: Collection[str] | None) -> Endpoints:
        """The endpoints of its session."""
        ...


def is_plain(attempt: Performable) -> bool:
    """Whether `execute` is a plain function: it then gets a thread without a running event loop."""
    return not inspect.iscoroutinefunction(attempt.workflow_class.execute)


async def perform(attempt: Performable) -> WorkflowOutput:
    """Run the user's code to its output. Raises whatever that code raises, and EpisodeFailed for a wrong return."""
    with no_exit():
        async with aclosing(attempt.resources):
            workflow, tuner = _begin(attempt)
            with playing(tuner.endpoints):
                return _checked(workflow, await workflow.execute(attempt.task, tuner))


def perform_plain(attempt: Performable) -> WorkflowOutput:
    """The same for a plain `execute` (one that returns a coroutine is run to its end)."""
    with no_exit(), closing(attempt.resources):
        workflow, tuner = _begin(attempt)
        with playing(tuner.endpoints):
            output = workflow.execute(attempt.task, tuner)
            if inspect.isawaitable(output):
                output = asyncio.run(_closed(output, attempt.resources))
        return _checked(workflow, output)


def _begin(attempt: Performable) -> tuple[Any, ModelTuner]:
    from ajet.workflow.tuner import ModelTuner

    workflow = attempt.workflow_class()
    trainable = getattr(workflow, "trainable_targets", None) or None
    endpoints = attempt.open(trainable)
    return workflow, ModelTuner(attempt.config, endpoints, trainable=trainable, resources=attempt.resources)


def _checked(workflow: Any, output: Any) -> WorkflowOutput:
    name = f"{type(workflow).__name__}.execute"
    if output is None:
        raise failed("returned_nothing", f"{name} returned None; expected a WorkflowOutput")
    if not isinstance(output, WorkflowOutput):
        raise failed("wrong_type", f"{name} returned a {type(output).__name__}; expected a WorkflowOutput")
    return output


async def _closed(output: Awaitable[Any], resources: Resources) -> Any:
    async with aclosing(resources):
        return await output


@contextmanager
def no_exit() -> Iterator[None]:
    """`sys.exit` in user code ends its episode, not the event loop that other episodes share."""
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as ending:
        raise failed(type(ending).__name__, f"the workflow ended the program: {ending!r}") from ending
