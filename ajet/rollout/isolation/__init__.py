"""Isolations run user code: `thread`, `loop`, `loops`, `process` or a plug-in's, behind one contract.

An isolation takes attempts and returns futures with the workflow's output or exception. Invariant: user code never runs
on the loops of the gateway, the engine or the rollout. Timeouts work, and other attempts continue, even if user code
blocks. `thread` and `loop` run user code in this process. `process`, `loops` and the plug-in's `sandbox` use workers,
with one protocol (`messages`): WorkerPool, WorkerHandle and WorkerProcess on the rollout's side; WorkerChannel,
WorkerAttempt and a player in the worker.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from ajet.config.references import resolve_class
from ajet.rollout.attempt import LocalAttempt
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


class Isolation(Protocol):
    """Runs attempts. `rollout.isolation` chooses the class, by name or by reference.

    All members may be called from any thread and return at once, except that `locate` of a remote isolation may take a
    moment.
    """

    shares_loop: bool
    """True if attempts share an event loop, where a blocking attempt delays the others."""

    is_remote: bool
    """True if attempts run in other processes, without later environment changes of this process."""

    @classmethod
    def create(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> Isolation:
        """Return an isolation for attempts of this workflow.

        Args:
            ambient: The gateway's endpoint for clients without an own endpoint, set in a remote attempt's environment.

        Raises:
            ConfigError: The isolation cannot run this workflow.
        """
        ...

    @property
    def abandoned_count(self) -> int:
        """The number of attempts whose code still runs although they were stopped."""
        ...

    def start(self, attempt: LocalAttempt) -> Future[WorkflowOutput]:
        """Begin the attempt.

        The future gets the result or exception of `perform_attempt`. After `stop` the future may stay open.
        """
        ...

    def locate(self, attempt: LocalAttempt) -> str:
        """Return the line of user code that the attempt executes now, as file:line, or "" if unknown."""
        ...

    def stop(self, attempt: LocalAttempt) -> None:
        """End the attempt by the isolation's means: a cancellation, or a signal to the attempt's process."""
        ...

    def close(self) -> None:
        """Stop all attempts and release threads and processes. Idempotent."""
        ...


def open_isolation(experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> Isolation:
    """Return the isolation named by `rollout.isolation`, from `Isolation.create`. Raises UserError."""
    isolation: Isolation = _find_class(experiment).create(experiment, workflow_class, ambient)
    return isolation


def require_isolable(experiment: Experiment, workflow_class: type[Any]) -> None:
    """Raise ConfigError if the named isolation refuses this workflow or experiment. Starts no process.

    Only isolations with such limits have a class method `require_isolable`, which is called here.
    """
    check = getattr(_find_class(experiment), "require_isolable", None)
    if check is not None:
        check(experiment, workflow_class)


def _find_class(experiment: Experiment) -> type[Any]:
    """Return the isolation class named by `rollout.isolation`. Raises UserError if it lacks a method of `Isolation`."""
    return resolve_class(
        experiment.ajet.rollout.isolation,
        "isolation",
        base=experiment.base,
        key="ajet.rollout.isolation",
        methods=("create", "start", "locate", "stop", "close"),
        like="ajet.rollout.isolation.Isolation",
    )
