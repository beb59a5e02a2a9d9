"""Likely causes of exceptions in the user's code at one of ajet's objects, with the correct code.

Invariant: the advice follows from the exception alone, with task and output if known; "" without a sure cause.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import metadata
from typing import Any

from ajet.schema.commands import format_install
from ajet.schema.task import Task, WorkflowOutput

_NO_ATTRIBUTE = re.compile(r"'(?P<kind>\w+)' object has no attribute '(?P<name>\w+)'")
_KIND = re.compile(r"(?<![\w.])(?P<kind>WorkflowTask|WorkflowOutput|ModelTuner|Task)(?!\w)")
_OF_AGENT = "the arguments are (task, tuner), in this order"
_OF_JUDGE = "the arguments are (task, output), in this order"
_ANSWER = 'the answer is in `output.metadata["final_answer"]`'
_QUESTION = "`task.main_query` is the question as text"
_INNER = "a class gets the task as `workflow_task.task`"
_CLIENT = "`tuner.as_raw_openai_sdk_client()` returns a client of the OpenAI SDK"
_OF_A_CLIENT = ("chat", "completions", "responses", "models", "beta", "messages")
_MEANT = {
    "Task": "its columns are in `task.metadata`, and " + _QUESTION,
    "WorkflowTask": _INNER,
    "WorkflowOutput": _ANSWER,
    "ModelTuner": _CLIENT,
}
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})|%\w+%")
_NAMES_OF_TUNER = ("tuner", "ajet_tuner", "model_tuner")
MAX_SHOWN_COLUMNS = 12
"""Limit on the number of listed columns."""


def advise_on(problem: BaseException, task: Task | None = None, output: WorkflowOutput | None = None) -> str:
    """Return advice on an exception that a user's agent or judge raised, or "" without a sure cause.

    Args:
        task: The task argument of the failing code, if known.
        output: The output argument of the failing judge, if known.
    """
    if isinstance(problem, KeyError):
        return _advise_on_key(problem, task, output)
    message = str(problem)
    if advice := advise_on_agentscope(problem):
        return advice
    if isinstance(problem, AttributeError) and (match := _NO_ATTRIBUTE.search(message)):
        return _advise_on_renamed_tuner(problem, match["name"]) or _advise_on_attribute(
            match["kind"], match["name"], task
        )
    # Such as "Object of type Task is not JSON serializable": one of its values was meant.
    if isinstance(problem, TypeError) and (kind := _KIND.search(message)):
        return _MEANT[kind["kind"]]
    return ""


_ARGUMENT_OF_OTHER = re.compile(
    r"^(\w+)\.__init__\(\) got an unexpected keyword argument '(api_key|credential|model_name|sysw*_prompt)'"
)
"""Arguments that only one major version of AgentScope takes."""


def advise_on_agentscope(problem: BaseException) -> str:
    """Return advice on code written for the other major version of AgentScope, or "" for any other exception.

    AgentScope 1 with mcp 2 gets advice as well: its imports of `mcp` then fail.
    """
    try:
        installed = metadata.version("agentscope")
    except metadata.PackageNotFoundError:
        return ""
    if isinstance(problem, ImportError) and (problem.name or "").startswith("mcp.") and installed.startswith("1."):
        return f"AgentScope {installed} needs mcp 1: {format_install('mcp<2')}"
    if not _is_about_agentscope(problem):
        return ""
    other_version, packages = (
        ("2", ["agentscope>=2"]) if installed.startswith("1.") else ("1", ["agentscope<2", "mcp<2"])
    )
    return f"AgentScope {installed} is installed; code for AgentScope {other_version} needs {format_install(*packages)}"


def _is_about_agentscope(problem: BaseException) -> bool:
    """Return True if the exception shows code written for another major version of AgentScope.

    It does if a name of AgentScope cannot be imported, or if a class of AgentScope refuses an argument which only the
    other version takes.
    """
    if isinstance(problem, ImportError):
        return (problem.name or "").startswith("agentscope")
    refused_argument = _ARGUMENT_OF_OTHER.match(str(problem)) if isinstance(problem, TypeError) else None
    modules = (sys.modules.get(f"agentscope.{module_name}") for module_name in ("agent", "model"))
    return refused_argument is not None and any(hasattr(module, refused_argument[1]) for module in modules)


def _advise_on_renamed_tuner(problem: AttributeError, name: str) -> str:
    """Return advice on a model tuner used as if it were an OpenAI client, or "" for any other error.

    An agent with parameters such as `(question, client)` takes the tuner for a client.
    """
    if name not in _OF_A_CLIENT or type(problem.obj).__name__ != "ModelTuner":
        return ""
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount]
        tuner_name = next(
            (argument_name for argument_name in names if frame.f_locals.get(argument_name) is problem.obj), ""
        )
        if tuner_name and tuner_name not in _NAMES_OF_TUNER and len(names) >= 2 and names[-1] == tuner_name:
            return (
                f"{code.co_name}({', '.join(names)}) gets the task and the tuner as arguments: the question is "
                f"`{names[-2]}.main_query`, and `{tuner_name}.as_raw_openai_sdk_client()` returns a client of the "
                "OpenAI SDK"
            )
    return ""


def advise_on_path(path: str) -> str:
    """Return advice on a missing path that contains an environment variable, or "" for any other path."""
    variable = _VARIABLE.search(path)
    if variable is None:
        return ""
    return f"write the complete path: ajet does not expand environment variables such as {variable[0]} in paths"


def _advise_on_attribute(kind: str, name: str, task: Task | None) -> str:
    """Return advice on the missing attribute `name` of an object of class `kind`, or "" without a sure cause.

    The name tells which object the code expected: the tuner, the task or the workflow's output.
    """
    if kind == "Task":
        # Only the tuner has methods as_...: the arguments are swapped.
        if name.startswith("as_"):
            return _OF_AGENT
        if name in ("final_answer", *WorkflowOutput.model_fields):
            return _OF_JUDGE
        if hasattr(str, name):  # the code takes the task for the question itself
            return _QUESTION
        return f"the columns of a row are in its `metadata`: {_advise_on_column(name, task)}"
    if kind == "ModelTuner":
        is_task_field = name in Task.model_fields or (task is not None and name in task.metadata)
        return _CLIENT if name in _OF_A_CLIENT else _OF_AGENT if is_task_field else ""
    if kind == "WorkflowOutput":
        is_task_field = name in Task.model_fields or (task is not None and name in task.metadata)
        return _OF_JUDGE if is_task_field else _ANSWER
    return _INNER if kind == "WorkflowTask" else ""


def _advise_on_key(problem: KeyError, task: Task | None, output: WorkflowOutput | None) -> str:
    """Return advice on a KeyError raised by a line that reads a `metadata`, or "" for any other KeyError."""
    frames = traceback.extract_tb(problem.__traceback__)
    name = problem.args[0] if problem.args else None
    # Only if the failing line itself reads a metadata: other dictionaries are the user's own.
    if task is None or not isinstance(name, str) or not any("metadata" in (frame.line or "") for frame in frames[-1:]):
        return ""
    if output is not None and (name in task.metadata or name in output.metadata):
        return _OF_JUDGE
    return "" if name == "final_answer" else _advise_on_column(name, task)


def _advise_on_column(name: str, task: Task | None) -> str:
    """Return how to read the column `name` of a task's row, or which columns the row has if this one is missing."""
    if task is None or name in task.metadata:
        return f'`task.metadata["{name}"]`'
    if not task.metadata:
        return f"the row has neither a column {name} nor any other column"
    return f"the row has no column {name}, but {_list_columns(task.metadata, name)}"


def _list_columns(columns: Mapping[str, Any], name: str) -> str:
    """Return the column names as text, with a suggestion if one resembles `name`."""
    columns_by_folded_name = {column.casefold(): column for column in columns}
    similar = get_close_matches(name.casefold(), columns_by_folded_name, 1)
    column_list = ", ".join(list(columns)[:MAX_SHOWN_COLUMNS]) + (", …" if len(columns) > MAX_SHOWN_COLUMNS else "")
    return column_list + (f'; did you mean "{columns_by_folded_name[similar[0]]}"?' if similar else "")
