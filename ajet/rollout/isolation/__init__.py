"""Where user code runs: `thread`, `loop`, `loops`, `process` or a plug-in's, behind one contract.

In: attempts. Out: a future with the workflow's output, or with what it raised. Invariant: user code never runs on the
loops of the gateway, the engine or the rollout, so whatever it does, a timeout is noticed and the others go on.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from ajet.config.references import class_of
from ajet.rollout.attempt import Attempt
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment


class Isolation(Protocol):
    """Runs attempts. All members may be called from any thread and return at once. Chosen by `rollout.isolation`, by
    name or by reference."""

    shared: bool
    """Whether attempts share one event loop, so that one that blocks holds up the others."""

    apart: bool
    """Whether attempts are played in other processes than this one, whose environment they see nothing of."""

    @classmethod
    def opened(cls, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> Isolation:
        """An isolation for attempts of this workflow. `ambient`: the gateway's, for clients that are given nothing; in
        an attempt's own environment where there is one. Raises ConfigError for a workflow that it cannot run."""
        ...

    @property
    def abandoned(self) -> int:
        """Stopped attempts whose code still runs: it could not be ended."""
        ...

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin. The future carries what `perform` returns or raises; after `stop` it may stay open for ever."""
        ...

    def stands(self, attempt: Attempt) -> str:
        """The line at which the person's code stands now, file:line; "" where that is not known."""
        ...

    def stop(self, attempt: Attempt) -> None:
        """End the attempt as far as this isolation can: a cancellation, or a signal to its process."""
        ...

    def close(self) -> None:
        """Stop everything. Idempotent."""
        ...


def open_isolation(experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> Isolation:
    """The isolation that `rollout.isolation` names. `ambient`: the gateway's, for clients that are given nothing.
    Raises UserError."""
    found: Isolation = _find_class(experiment).opened(experiment, workflow_class, ambient)
    return found


def require_isolable(experiment: Experiment, workflow_class: type[Any]) -> None:
    """Raise ConfigError if the named isolation refuses this workflow or experiment; starts no process.

    An isolation that refuses some has a class method of this name.
    """
    check = getattr(_find_class(experiment), "require_isolable", None)
    if check is not None:
        check(experiment, workflow_class)


def _find_class(experiment: Experiment) -> type[Any]:
    return class_of(
        experiment.ajet.rollout.isolation,
        "isolation",
        base=experiment.base,
        what="ajet.rollout.isolation",
        does=("opened", "start", "stands", "stop", "close"),
        like="ajet.rollout.isolation.Isolation",
    )
