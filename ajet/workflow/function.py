"""A function as a workflow: `async def agent(task, tuner)`, or the same without `async`.

Invariant: behind `workflow_from` a function is a Workflow like any other, and in every process that resolves the same
reference it is the same one, so that no isolation and no backbone knows the difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from numbers import Real
from typing import Any

from pydantic import BaseModel

from ajet.config.functions import is_function, require_callable_with, require_order
from ajet.config.references import parse_reference
from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.workflow import Workflow

KEY = "ajet.rollout.user_workflow"
_OLDER = ("agentscope_execute",)
"""What AgentJet's earliest versions called `execute`."""


def as_workflow(found: Any, reference: str) -> Any:
    """What `reference` named, a function as a class, anything else as it is. Raises ConfigError for a function that
    cannot be an agent."""
    if is_function(found):
        return workflow_from(found, reference)
    if isinstance(found, type) and issubclass(found, Workflow):
        _require_execute(found, reference)
    return found


def _require_execute(kind: type[Workflow], reference: str) -> None:
    """Raises ConfigError for a class whose `execute` takes no tuner."""
    if kind.execute is Workflow.execute:
        older = [name for name in _OLDER if hasattr(kind, name)]
        raise ConfigError(
            f"{KEY}: {reference} has no method `execute`.",
            where=KEY,
            expected="execute(self, workflow_task, tuner); the names are yours",
            do=f"call its {older[0]} `execute`" if older else "write `async def execute(self, workflow_task, tuner):`",
        )
    execute: Any = inspect.unwrap(kind.execute)
    try:
        inspect.signature(execute).bind(None, None, None)
    except TypeError:
        code = getattr(execute, "__code__", None)
        raise ConfigError(
            f"{KEY}: {reference}.execute takes {inspect.signature(execute)}, and is called with a task and the tuner.",
            where=f"{code.co_filename}:{code.co_firstlineno}" if code is not None else KEY,
            expected="execute(self, workflow_task, tuner); the names are yours",
            do="write `async def execute(self, workflow_task, tuner):`",
        ) from None
    require_order(execute, ("workflow_task", "tuner"), what=KEY, reference=f"{reference}.execute", method=True)
    _require_makeable(kind, reference)


def _require_makeable(kind: type[Workflow], reference: str) -> None:
    """Raises ConfigError for a class of which no object can be made without arguments."""
    own: Any = kind.__init__
    if own is not BaseModel.__init__:
        code = getattr(inspect.unwrap(own), "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else KEY
        try:
            inspect.signature(own).bind(None)
        except TypeError:
            raise _not_makeable_error(f"{reference}.__init__ takes {inspect.signature(own)}", where) from None
    elif required := [name for name, field in kind.model_fields.items() if field.is_required()]:
        raise _not_makeable_error(f"{reference} has no default for {', '.join(required)}", KEY)


def _not_makeable_error(problem: str, where: str) -> ConfigError:
    return ConfigError(
        f"{KEY}: {problem}, and an object of it is made without arguments.",
        where=where,
        expected="a class that needs none: each attempt gets an object of its own",
        do="give them defaults; the configuration is `tuner.config` in `execute`",
    )


def workflow_from(function: Callable[..., Any], reference: str) -> type[Workflow]:
    """A Workflow class that plays `function(task, tuner)`; `task` is the Task. Raises ConfigError unless it takes two
    arguments. It is called what it is called in the reference, however the function was decorated."""
    require_callable_with(function, ("task", "tuner"), what=KEY, reference=reference)
    called = parse_reference(reference, what=KEY).name

    async def execute(self: Workflow, workflow_task: WorkflowTask, tuner: Any, /) -> WorkflowOutput:
        return to_output(await function(workflow_task.task, tuner))

    def execute_plain(self: Workflow, workflow_task: WorkflowTask, tuner: Any, /) -> Any:
        found = function(workflow_task.task, tuner)
        return _await_output(found) if inspect.isawaitable(found) else to_output(found)

    class FunctionWorkflow(Workflow):
        name: str = called

    # whether `execute` is a coroutine function decides what an isolation runs it in
    FunctionWorkflow.execute = execute if inspect.iscoroutinefunction(function) else execute_plain  # type: ignore[method-assign]
    FunctionWorkflow.__abstractmethods__ = frozenset()
    FunctionWorkflow.__name__ = FunctionWorkflow.__qualname__ = called
    FunctionWorkflow.__module__ = getattr(function, "__module__", None) or __name__
    FunctionWorkflow.__doc__ = function.__doc__
    return FunctionWorkflow


def is_of_function(workflow: type[Workflow]) -> bool:
    """Whether a workflow class was made of a plain function."""
    return workflow.execute.__module__ == __name__


def to_output(found: Any) -> Any:
    """What an agent's function returned, as a WorkflowOutput: text (or a list or a dict) is the answer, which judges
    read as `final_answer`; a number is the reward; True and False are a reward of 1 and 0, and a success or none.
    Anything else is left as it is: the episode fails by it, as a class's would."""
    if isinstance(found, bool):
        return WorkflowOutput(reward=float(found), is_success=found)
    if isinstance(found, Real):
        return WorkflowOutput(reward=float(found))
    if isinstance(found, (str, list, dict)):
        return WorkflowOutput(metadata={"final_answer": found})
    return found


async def _await_output(found: Awaitable[Any]) -> Any:
    return to_output(await found)
