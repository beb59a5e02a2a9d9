"""A function as a workflow: `async def agent(task, tuner)`, or without `async`.

Invariant: `workflow_from` returns an ordinary Workflow class, equal in every process that resolves the same reference,
so isolations and backbones see no difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from numbers import Real
from typing import Any, ClassVar

from pydantic import BaseModel

from ajet.config.functions import is_function, require_callable_with, require_order
from ajet.config.references import parse_reference
from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.workflow import Workflow

KEY = "ajet.rollout.user_workflow"
_OLDER = ("agentscope_execute",)
"""Names of `execute` in early versions of AgentJet."""


def as_workflow(found: Any, reference: str) -> Any:
    """Return a workflow class for a function, and any other value unchanged.

    Raises:
        ConfigError: the function, or the `execute` of a Workflow class, does not take a task and the tuner.
    """
    if is_function(found):
        return workflow_from(found, reference)
    if isinstance(found, type) and issubclass(found, Workflow):
        _require_execute(found, reference)
    return found


def _require_execute(workflow_class: type[Workflow], reference: str) -> None:
    """Raise ConfigError for a class without `execute(self, workflow_task, tuner)` or with constructor arguments."""
    if workflow_class.execute is Workflow.execute:
        older_names = [name for name in _OLDER if hasattr(workflow_class, name)]
        raise ConfigError(
            f"{KEY}: {reference} has no method `execute`.",
            where=KEY,
            expected="a method execute(self, workflow_task, tuner); the parameters may have other names",
            do=f"rename its method {older_names[0]} to `execute`"
            if older_names
            else "write `async def execute(self, workflow_task, tuner):`",
        )
    execute: Any = inspect.unwrap(workflow_class.execute)
    try:
        inspect.signature(execute).bind(None, None, None)
    except TypeError:
        code = getattr(execute, "__code__", None)
        raise ConfigError(
            f"{KEY}: ajet calls {reference}.execute with a task and the tuner, but its signature is "
            f"{inspect.signature(execute)}.",
            where=f"{code.co_filename}:{code.co_firstlineno}" if code is not None else KEY,
            expected="a method execute(self, workflow_task, tuner); the parameters may have other names",
            do="write `async def execute(self, workflow_task, tuner):`",
        ) from None
    require_order(execute, ("workflow_task", "tuner"), key=KEY, reference=f"{reference}.execute", method=True)
    _require_makeable(workflow_class, reference)


def _require_makeable(workflow_class: type[Workflow], reference: str) -> None:
    """Raise ConfigError for a class whose constructor needs arguments: ajet creates an object for each attempt."""
    initializer: Any = workflow_class.__init__
    if initializer is not BaseModel.__init__:
        code = getattr(inspect.unwrap(initializer), "__code__", None)
        location = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else KEY
        try:
            inspect.signature(initializer).bind(None)
        except TypeError:
            raise _not_makeable_error(
                f"the signature of {reference}.__init__ is {inspect.signature(initializer)}", location
            ) from None
    # Without an own constructor, pydantic's requires the fields without default.
    elif required := [name for name, field in workflow_class.model_fields.items() if field.is_required()]:
        raise _not_makeable_error(f"{reference} has no default for {', '.join(required)}", KEY)


def _not_makeable_error(problem: str, where: str) -> ConfigError:
    """Return the error for a class whose constructor needs arguments."""
    return ConfigError(
        f"{KEY}: {problem}, but ajet creates the object without arguments.",
        where=where,
        expected="a class that can be created without arguments, because each attempt gets a new object",
        do="give the parameters defaults; in `execute`, the configuration is `tuner.config`",
    )


def workflow_from(function: Callable[..., Any], reference: str) -> type[Workflow]:
    """Return a Workflow class that calls `function(task, tuner)`; `task` is the Task.

    The class has the name of the reference, whatever decorators the function has. Raises ConfigError unless the
    function takes two arguments.
    """
    require_callable_with(function, ("task", "tuner"), key=KEY, reference=reference)
    workflow_name = parse_reference(reference, key=KEY).name

    async def execute(self: Workflow, workflow_task: WorkflowTask, tuner: Any, /) -> WorkflowOutput:
        return to_output(await function(workflow_task.task, tuner))

    def execute_plain(self: Workflow, workflow_task: WorkflowTask, tuner: Any, /) -> Any:
        returned = function(workflow_task.task, tuner)
        return _await_output(returned) if inspect.isawaitable(returned) else to_output(returned)

    class FunctionWorkflow(Workflow):
        name: str = workflow_name
        function: ClassVar[Callable[..., Any]]

    # The isolation decides by `execute`, coroutine function or not, where to run it.
    FunctionWorkflow.execute = execute if inspect.iscoroutinefunction(function) else execute_plain  # type: ignore[method-assign]
    FunctionWorkflow.function = staticmethod(function)
    FunctionWorkflow.__abstractmethods__ = frozenset()
    FunctionWorkflow.__name__ = FunctionWorkflow.__qualname__ = workflow_name
    FunctionWorkflow.__module__ = getattr(function, "__module__", None) or __name__
    FunctionWorkflow.__doc__ = function.__doc__
    return FunctionWorkflow


def is_of_function(workflow: type[Workflow]) -> bool:
    """Return True if `workflow_from` made the class from a function; only then `execute` is from this module."""
    return workflow.execute.__module__ == __name__


def to_output(found: Any) -> Any:
    """Convert a function's result to a WorkflowOutput.

    Text, a list or a dict is the answer (`final_answer`); a number is the reward; True and False are reward and
    success. Other values stay unchanged and fail the episode.
    """
    if isinstance(found, bool):
        return WorkflowOutput(reward=float(found), is_success=found)
    if isinstance(found, Real):
        return WorkflowOutput(reward=float(found))
    if isinstance(found, (str, list, dict)):
        return WorkflowOutput(metadata={"final_answer": found})
    return found


async def _await_output(found: Awaitable[Any]) -> Any:
    """Await a function's result and convert it to a WorkflowOutput."""
    return to_output(await found)
