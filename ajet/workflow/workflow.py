"""Workflow: one attempt at one task, as the user writes it.

Invariant: every episode gets an instance of its own, so what a workflow keeps on `self` is that episode's alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow.attributes import PlainAttributes, prepare

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.workflow.tuner import ModelTuner


class Workflow(BaseModel, ABC, metaclass=PlainAttributes):
    """Subclass it and write `execute`. A pydantic model that takes further fields, declared or set on `self`, and
    attributes without annotations like any class."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    name: str = Field(default="workflow", description="For records and logs.")
    trainable_targets: list[str] | None = Field(
        default=None,
        description="Target tags whose replies are trained; None: every agent's. The rest talk to their debug model.",
    )

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """An object that may be set up before `super().__init__()`, or without it."""
        made = super().__new__(cls)
        if cls.__init__ is not BaseModel.__init__:
            prepare(made)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one of the class is then this object's own."""
        if name in type(self).__class_vars__:
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    @classmethod
    def check(cls, config: Any) -> None:
        """Called once before a run, with the composed config: raise a UserError for a section that cannot be used."""

    @classmethod
    def needs_judge(cls, config: Any) -> bool:
        """True if an attempt never brings a reward of its own: without a judge a run would have none at all."""
        return False

    @abstractmethod
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Play the task with an agent that talks to `tuner`, and say how it went.

        Arguments come by position, so their names are free. A plain function does too, and blocking calls may stand
        in an async one. What it raises ends the episode as failed; it is recorded and never trained on. A `reward`
        of None leaves the verdict to the judge.
        """


@runtime_checkable
class ToolWorkflow(Protocol):
    """A workflow whose prompt and tools are known before it plays.

    A run whose tools leave no room for a reply is refused before it begins, and `ajet plan` counts their tokens.
    """

    @classmethod
    def opening(cls, config: Any, task: Task) -> list[dict[str, Any]]:
        """Return the messages that an attempt at the task begins with."""
        ...

    @classmethod
    def list_tools(cls, experiment: Experiment, *, start: bool) -> list[dict[str, Any]] | None:
        """Return the tools of `environment.use` as a request's `tools`; None if they must be started to know them.

        Args:
            start: True to start what must be started.

        Raises:
            UserError: the tools cannot be listed.
        """
        ...
