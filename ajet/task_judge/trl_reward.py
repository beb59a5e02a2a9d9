"""Adapts TRL reward functions: lists of prompts, completions and columns by name.

Invariant: the function gets lists of one item and returns a list of one reward; any other result is a JudgeFailure. The
function is never called with (task, output), which would be taken for lists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from ajet.config.functions import is_function, locate_function
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.scorers.call import ScorerCall, read_parameters
from ajet.task_reader.column_names import RowColumns

SIGNATURE = "(completions, **kwargs), which gets prompts and the rows' columns by name and returns a list of rewards"
_COMPLETIONS, _PROMPTS = "completions", "prompts"
_NOT_HERE = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
"""What TRL's trainer passes, too, and no run of ajet has."""
_OF_OTHERS = ("completion", "prompt")
"""Parameter names by which reward functions of other libraries are recognized."""


def is_trl_reward(found: Any) -> bool:
    """Return True for a function with a parameter `completions` or `prompts`, as TRL's reward functions have."""
    return is_function(found) and not {_COMPLETIONS, _PROMPTS}.isdisjoint(read_parameters(found))


def adapt_trl_reward(
    function: Callable[..., Any], reference: str, *, key: str
) -> Callable[[Task, WorkflowOutput], Any]:
    """Return a function `(task, output)` that calls a TRL reward function.

    Args:
        key: key of the reference.

    Raises:
        ConfigError: the function requires values only TRL's trainer has.
    """
    parameters = read_parameters(function)
    missing = [name for name in _NOT_HERE if name in parameters and parameters[name].default is inspect.Parameter.empty]
    if missing:
        raise ConfigError(
            f"{key}: {reference} is a TRL reward function that needs {', '.join(missing)}.",
            where=locate_function(function) or key,
            expected=f"a function of {SIGNATURE}; or of (task, output)",
            do="remove these parameters, or give them default values",
        )

    async def ask(task: Task, output: WorkflowOutput) -> Any:
        return _single_reward(await function(**_arguments_of(parameters, task, output)), reference)

    def ask_plain(task: Task, output: WorkflowOutput) -> Any:
        return _single_reward(function(**_arguments_of(parameters, task, output)), reference)

    caller: Any = ask if inspect.iscoroutinefunction(function) else ask_plain
    caller.__module__ = getattr(function, "__module__", None) or __name__
    return caller


def refuse_other_signature(function: Callable[..., Any], reference: str, *, key: str) -> None:
    """Raise ConfigError for a function with `completion` or `prompt`, the parameter names of another library."""
    names = [name for name in _OF_OTHERS if name in read_parameters(function)]
    if names:
        raise ConfigError(
            f"{key}: {reference} needs {' and '.join(names)}, but is called with (task, output).",
            where=locate_function(function) or key,
            expected='a function of (task, output), where output.metadata["final_answer"] is the reply; or a TRL '
            f"reward function {SIGNATURE}",
            do=f"write `def {getattr(function, '__name__', 'reward')}(task, output):`",
        )


def _arguments_of(
    parameters: Mapping[str, inspect.Parameter], task: Task, output: WorkflowOutput
) -> dict[str, list[Any]]:
    """Return the arguments of a TRL reward function by name, each a list for the only completion.

    Parameters other than `prompts` and `completions` get the row's column of the same name.

    Raises:
        JudgeFailure: a required column is missing.
    """
    text = ScorerCall(WorkflowTask(task=task), output).text
    known_arguments: dict[str, Any] = {_PROMPTS: task.main_query, _COMPLETIONS: text}
    if task.init_messages and not task.main_query:  # TRL's conversational format: lists of messages
        known_arguments = {_PROMPTS: task.init_messages, _COMPLETIONS: [{"role": "assistant", "content": text}]}
    columns = RowColumns(task.metadata)
    arguments: dict[str, Any] = {}
    # A function with **kwargs gets all columns, as TRL passes them.
    if any(accepted.kind is accepted.VAR_KEYWORD for accepted in parameters.values()):
        arguments = {str(name): [value] for name, value in columns.row.items()} | {
            name: [value] for name, value in known_arguments.items()
        }
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name in known_arguments:
            arguments[name] = [known_arguments[name]]
        elif (column := name if name in columns.row else columns.find(name)) is not None:
            arguments[name] = [columns.row[column]]
        elif parameter.default is parameter.empty:
            raise JudgeFailure(
                f"the reward needs the column {name}, but the row of task {task.task_id} has "
                f"{', '.join(columns.row) or 'none'}"
            )
    return arguments


def _single_reward(result: Any, reference: str) -> Any:
    """Return the reward of the only completion from a function's result: a number, or a list, tuple or array of one.

    None means no score. Raises JudgeFailure for any other result.
    """
    if result is None or isinstance(result, Real):
        return result
    rewards = result.tolist() if hasattr(result, "dtype") and hasattr(result, "tolist") else result
    if isinstance(rewards, Real):
        return rewards
    if not isinstance(rewards, list | tuple) or len(rewards) != 1 or not isinstance(rewards[0], Real | None):
        raise JudgeFailure(
            f"the reward function {reference} returned {result!r:.200} for one completion; expected a list with one "
            "entry: a number, or None for no score"
        )
    return rewards[0]
