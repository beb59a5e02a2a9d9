"""Where user code runs: `thread`, `loop` or `process`, behind one contract.

In: attempts. Out: a future with the workflow's output, or with what it raised. Invariant: user code never runs on the
loops of the gateway, the engine or the rollout, so whatever it does, a timeout is noticed and the others go on.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ajet.rollout.attempt import Attempt
from ajet.schema.endpoint import Endpoint
from ajet.schema.task import WorkflowOutput

if TYPE_CHECKING:
    from ajet.config import Experiment

IsolationName = Literal["thread", "loop", "process"]


class Isolation(Protocol):
    """Runs attempts. All members may be called from any thread and return at once."""

    @property
    def abandoned(self) -> int:
        """Stopped attempts whose code still runs: it could not be ended."""
        ...

    def start(self, attempt: Attempt) -> Future[WorkflowOutput]:
        """Begin. The future carries what `perform` returns or raises; after `stop` it may stay open for ever."""
        ...

    def stop(self, attempt: Attempt) -> None:
        """End the attempt as far as this isolation can: a cancellation, or a signal to its process."""
        ...

    def close(self) -> None:
        """Stop everything. Idempotent."""
        ...


def open_isolation(
    name: IsolationName, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint
) -> Isolation:
    """The isolation that `rollout.isolation` names. `ambient`: the gateway's, for clients that are given nothing."""
    if name == "process":
        from ajet.rollout.isolation.process import ProcessIsolation

        return ProcessIsolation(experiment, workflow_class, ambient)
    if name == "loop":
        from ajet.rollout.isolation.loop import LoopIsolation

        return LoopIsolation()
    from ajet.rollout.isolation.thread import ThreadIsolation

    return ThreadIsolation()
