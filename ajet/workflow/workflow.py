"""Workflow: one attempt at one task, written by the user.

Invariant: every episode has its own instance; attributes of `self` belong to one episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo, ModelPrivateAttr

from ajet.schema.task import Task, WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as ModelType

    from ajet.config import Experiment
    from ajet.workflow.tuner import ModelTuner
else:
    ModelType = type(BaseModel)


class PlainAttributes(ModelType):
    """Metaclass for attributes without annotations, refused by plain pydantic.

    Invariant: `max_turns = 3` in the class body needs no annotation and may be set on `self`; attributes declared by a
    base keep their annotation. A list, dict or set in the class body is copied (shallow) per object, so no attempt's
    history reaches the next. `__init__` need not call `super().__init__()`. Annotated names and names with an
    underscore are left to pydantic.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        """Create the class; attributes without annotations get one, as pydantic requires.

        An attribute that a base declares keeps its annotation; any other becomes a ClassVar.
        """
        annotations = namespace.setdefault("__annotations__", {})
        for attribute, value in list(namespace.items()):
            if attribute.startswith("_") or attribute in annotations or _is_pydantics(value, attribute):
                continue
            inherited_fields = [
                base_fields[attribute] for base in bases if attribute in (base_fields := _model_fields(base))
            ]
            annotations[attribute] = inherited_fields[0].annotation if inherited_fields else ClassVar
            if not inherited_fields and isinstance(value, (list, dict, set)):
                namespace[attribute] = _OwnCopy(attribute, value)
        return super().__new__(mcs, name, bases, namespace, **kwargs)


class _OwnCopy:
    """A list, dict or set of a class body: each object gets a copy on first access."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Return the object's own copy, made on first access; on the class itself the original."""
        return self._value if owner is None else vars(owner).setdefault(self._name, copy(self._value))


def prepare_instance(made: BaseModel) -> None:
    """Set the state normally set by pydantic's `__init__`, for classes whose own `__init__` does not call it."""
    defaults: dict[str, Any] = {}
    for name, field in type(made).model_fields.items():
        if not field.is_required():
            defaults[name] = field.get_default(call_default_factory=True, validated_data=defaults)
    private_values = {
        name: private_attribute.get_default() for name, private_attribute in type(made).__private_attributes__.items()
    }
    object.__setattr__(made, "__dict__", defaults)
    object.__setattr__(made, "__pydantic_fields_set__", set())
    object.__setattr__(made, "__pydantic_extra__", {})
    object.__setattr__(made, "__pydantic_private__", private_values)


def _model_fields(base: type) -> dict[str, FieldInfo]:
    """Return the fields of a pydantic model by name; {} for other classes."""
    return base.model_fields if issubclass(base, BaseModel) else {}


def _is_pydantics(value: Any, attribute: str) -> bool:
    """Return True for an attribute that pydantic accepts without annotation (methods, properties), or reports itself.

    Fields without annotation are mistakes that pydantic explains.
    """
    return attribute == "model_config" or hasattr(value, "__get__") or isinstance(value, (FieldInfo, ModelPrivateAttr))


class Workflow(BaseModel, ABC, metaclass=PlainAttributes):
    """Base class of workflows: write `execute`.

    A pydantic model with extra fields, declared or set on `self`, and with attributes without annotations.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    name: str = Field(default="workflow", description="Name for records and logs.")
    trainable_targets: list[str] | None = Field(
        default=None,
        description="Target tags whose replies are trained; None: the replies of every agent. The other agents call "
        "their debug model.",
    )

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Create an object that may be set up before or without `super().__init__()`."""
        instance = super().__new__(cls)
        if cls.__init__ is not BaseModel.__init__:
            prepare_instance(instance)
        return instance

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an attribute of the class is set on the object alone, which pydantic would refuse."""
        if name in type(self).__class_vars__:
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    @classmethod
    def check(cls, config: Any) -> None:
        """Check the settings once before a run. Override to raise a UserError for a section that cannot be used.

        Args:
            config: The composed config, with attribute access.
        """

    @classmethod
    def needs_judge(cls, config: Any) -> bool:
        """Return True if attempts never set a reward, so that the run needs a judge. Override to change False."""
        return False

    def choose_targets(self, config: Any) -> list[str] | None:
        """Return the target tags to train; None: all. Called before `execute`, with the composed config."""
        return self.trainable_targets

    @abstractmethod
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Play the task with an agent that calls `tuner`, and return the outcome.

        Arguments are positional, so their names are free. A plain function works too, and an async one may block. An
        exception fails the episode: recorded, never trained on. A `reward` of None leaves the verdict to the judge.
        """


@runtime_checkable
class ToolWorkflow(Protocol):
    """A workflow with prompt and tools known before the run.

    A run whose tools leave no room for a reply is refused at launch; `ajet plan` counts the tokens.
    """

    @classmethod
    def opening(cls, config: Any, task: Task) -> list[dict[str, Any]]:
        """Return the messages that an attempt at the task begins with."""
        ...

    @classmethod
    def list_tools(cls, experiment: Experiment, *, start: bool) -> list[dict[str, Any]] | None:
        """Return the tools of `environment.use` as a request's `tools`; None if they must be started first.

        Args:
            start: True starts the servers if needed.

        Raises:
            UserError: the tools cannot be listed.
        """
        ...
