"""AgentTrainer's reward as a judge: a function with verl's four arguments, or ajet's two.

Invariant: a function with another signature, or annotated with another result than a number, is a ValueError before
anything is played; another result at run time is the judge's failure.
"""

from __future__ import annotations

import ast
import inspect
from numbers import Real
from pathlib import Path
from typing import Any

from ajet.config.references import resolve_reference
from ajet.schema.errors import JudgeFailure, UserError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_NUMBERS = ("float", "int", "bool", "Real", "Optional[float]", "float | None")


def describe_reward(given: Any, base: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the `task_judge` section, the configuration's own section). Raises ValueError."""
    reference = _build_reference(given, base)
    try:
        function = resolve_reference(reference, base=base, what="reward_func")
    except UserError as problem:
        raise ValueError(str(problem)) from problem
    if not callable(function):
        raise ValueError(f"Reward func must be callable or file path: {reference} is a {type(function).__name__}")
    if isinstance(function, type) or _accepts_count(function, 2, exactly=True):
        return {"judge_protocol": reference}, {}
    if not _accepts_count(function, 4):
        raise ValueError(
            f"the signature of the reward function {reference} is {inspect.signature(function)}; expected "
            f"({', '.join(ARGUMENTS)}), or (task, output)"
        )
    annotated = function.__annotations__.get("return", inspect.Signature.empty)
    returned = annotated if isinstance(annotated, str) else inspect.formatannotation(annotated)
    if annotated is not inspect.Signature.empty and returned not in _NUMBERS:
        raise ValueError(f"the reward function {reference} is annotated to return {returned}; expected a number")
    return {"judge_protocol": f"{__name__}->FunctionJudge"}, {"reward": reference}


class FunctionJudge(BaseJudge):
    """Calls the function named in the configuration."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._function = resolve_reference(
            config.aworld.reward, base=Path(config.ajet.base_dir), what="the reward function"
        )

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> float:
        """Return the function's score of the answer."""
        row = workflow_task.task.metadata
        answer = workflow_output.metadata.get("final_answer")
        text = answer if isinstance(answer, str) else "" if answer is None else str(answer)
        found = self._function(row.get("data_source", ""), text, row.get("answer"), row.get("extra_info") or {})
        if not isinstance(found, Real):
            raise JudgeFailure(f"the reward function returned a {type(found).__name__}; expected a number")
        return float(found)


def _build_reference(given: Any, base: Path) -> str:
    if isinstance(given, (str, Path)):
        text = str(given)
        return text if "->" in text else f"{text}->{_find_function(base / text)}"
    if not callable(given):
        raise ValueError("Reward func must be callable or file path")
    name, module = getattr(given, "__qualname__", repr(given)), getattr(given, "__module__", None)
    if not name.isidentifier():
        raise ValueError(f"the reward function {name} cannot be imported by a name; define it with `def` in a file")
    if module == "__main__":
        return f"__main__->{name}"
    return f"{Path(inspect.getfile(given)).resolve()}->{name}"


def _find_function(file: Path) -> str:
    """Return the function with the file's name, else the only one with verl's arguments."""
    if not file.is_file():
        raise ValueError(f"the reward function's file {file} does not exist")
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as problem:
        raise ValueError(f"the reward function's file {file} is not valid Python: {problem}") from None
    found = [each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    names = [each.name for each in found]
    if file.stem in names:
        return file.stem
    meant = [each.name for each in found if tuple(arg.arg for arg in each.args.args) == ARGUMENTS]
    if len(meant) != 1:
        raise ValueError(
            f"{file} has {len(meant)} functions of ({', '.join(ARGUMENTS)}); choose one by its name: {file}->NAME"
        )
    return meant[0]


def _accepts_count(function: Any, count: int, *, exactly: bool = False) -> bool:
    signature = inspect.signature(function)
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return not exactly or len(signature.parameters) == count
