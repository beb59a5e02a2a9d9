"""Which judge an experiment has: `task_judge.judge_type` by name, `judge_protocol` by reference, or its scorers.

Invariant: a run starts with a judge that was made, or does not start; what is wrong is one UserError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.functions import locate_function, require_callable_with
from ajet.config.plugin import PluginPart, load_code
from ajet.config.plugins import find_all_parts, find_part, list_references
from ajet.config.references import parse_reference
from ajet.schema.errors import ConfigError, UserError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.judge import Judge, Judging
from ajet.task_judge.scorers.bound import is_scorer_function
from ajet.task_judge.scorers.judge import ScorerJudge, open_scorers

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory

JudgeOpener = Callable[["Experiment"], "Judging | None"]


def open_judge(experiment: Experiment, reader_judge: Judging | None = None) -> Judge:
    """The experiment's judge: the one or the scorers it names, else the task reader's own, else a plug-in's fallback,
    else none. Raises ConfigError, UnresolvedReferenceError, or the UserError that the judge raises when it is
    made."""
    opener: JudgeOpener = load_code(_find_judge(experiment).code)
    scorers = open_scorers(experiment)
    judging = opener(experiment) or scorers or reader_judge or _open_fallback(experiment)
    return Judge(judging, gamma=experiment.ajet.rollout.gamma, ranks=getattr(judging, "ranks", None))


def prepare_judge(experiment: Experiment, run: RunDirectory | None = None) -> None:
    """Make what the judge needs before anything is played, such as rubrics. `run`: None where no run plays. Raises
    UserError."""
    if prepare := _find_judge(experiment).prepare:
        load_code(prepare)(experiment, run)


def _find_judge(experiment: Experiment) -> PluginPart:
    judge_type = experiment.ajet.task_judge.judge_type
    part = find_part("judge", judge_type)
    if part is None:
        raise ConfigError(
            f"The judge type {judge_type} is not part of this version.",
            where="task_judge.judge_type",
            expected=", ".join(find_all_parts("judge")),
        )
    return part


def _open_fallback(experiment: Experiment) -> Judging | None:
    """Return the judge that a plug-in has for a run without one; the first that there is."""
    openers: list[JudgeOpener] = [load_code(reference) for reference in list_references("fallback_judges")]
    return next((judging for opener in openers if (judging := opener(experiment)) is not None), None)


def open_by_reference(experiment: Experiment) -> Judging | None:
    """Open the judge that `task_judge.judge_protocol` refers to; None without one."""
    key = "task_judge.judge_protocol"
    reference = experiment.ajet.task_judge.judge_protocol
    if not reference:
        return None
    from ajet.config import resolve_reference
    from ajet.config.functions import is_function, require_order
    from ajet.task_judge.trl_reward import adapt_trl_reward, is_trl_reward, refuse_other_signature

    kind = resolve_reference(reference, base=experiment.base, what=key)
    if is_trl_reward(kind):
        kind = adapt_trl_reward(kind, reference, what=key)
    elif is_scorer_function(kind):
        judge = experiment.ajet.task_judge.replace_judges(scorer=reference)
        settings = experiment.ajet.model_copy(update={"task_judge": judge})
        return ScorerJudge(replace(experiment, ajet=settings), named_by=f"ajet.{key}")
    if is_function(kind):
        refuse_other_signature(kind, reference, what=key)
        kind = make_judge_class(kind, reference, what=key)
    method = getattr(kind, "compute_reward", None)
    if not isinstance(kind, type) or not callable(method):
        raise ConfigError(
            f"{reference} is no judge.",
            where=key,
            expected="a function of (task, output), or a class with compute_reward(workflow_task, workflow_output), "
            "such as a subclass of BaseJudge",
        )
    names = ("workflow_task", "workflow_output")
    require_order(inspect.unwrap(method), names, what=key, reference=f"{reference}.compute_reward", method=True)
    try:
        made = getattr(kind, "of_experiment", None)
        judging: Judging = kind(experiment.config) if made is None else made(experiment)
    except UserError:
        raise
    except Exception as problem:
        raise ConfigError(
            f"{reference} could not be made: {type(problem).__name__}: {problem}",
            where=key,
            expected="a class that can be called with the config alone",
            do="write `def __init__(self, config):`, or subclass ajet.task_judge.base_judge.BaseJudge, which has it",
        ) from problem
    return judging


def make_judge_class(function: Callable[..., Any], reference: str, *, what: str) -> type[Any]:
    """Return a judge class that calls `function(task, output)`, plain or `async`; `task` is the Task.

    The function may return what `compute_reward` may, and what it raises is a failure of the judge. `what` is the key
    that holds the reference. Raises ConfigError unless it takes two arguments.
    """
    require_callable_with(function, ("task", "output"), what=what, reference=reference)

    async def compute_reward(self: Any, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        return await function(workflow_task.task, workflow_output)

    def compute_plain(self: Any, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        return function(workflow_task.task, workflow_output)

    class UserFunctionJudge:
        def __init__(self, config: Any) -> None:
            """Takes the composed config, as every judge does; a function has no use for it."""

    # a plain one is asked in a thread of its own, an async one where the others are
    method = compute_reward if inspect.iscoroutinefunction(function) else compute_plain
    UserFunctionJudge.compute_reward = method  # type: ignore[attr-defined]
    UserFunctionJudge.__name__ = UserFunctionJudge.__qualname__ = parse_reference(reference, what=what).name
    UserFunctionJudge.written_at = Path(locate_function(function)).name  # type: ignore[attr-defined]
    UserFunctionJudge.__module__ = getattr(function, "__module__", None) or __name__
    return UserFunctionJudge
