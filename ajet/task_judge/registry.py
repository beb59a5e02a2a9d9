"""Opens the judge of an experiment: `task_judge.judge_type`, `judge_protocol`, or scorers.

Invariant: a run starts only with a constructed judge; every mistake is one UserError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.functions import locate_function, require_callable_with
from ajet.config.plugin import PluginPart, load_code
from ajet.config.plugins import find_all_parts, find_part, list_references
from ajet.config.references import parse_reference, read_parameters_of
from ajet.config.schema.choices import is_reference
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
    """Open the judge of an experiment.

    It is the configured judge or scorers, else the task reader's, else one that a plug-in offers, else none.

    Args:
        reader_judge: the judge that the task reader brings, or None.

    Raises:
        ConfigError, UnresolvedReferenceError: a setting is wrong.
        UserError: raised by the judge's constructor.
    """
    opener: JudgeOpener = load_code(_find_judge(experiment).code)
    scorers = open_scorers(experiment)
    judging = opener(experiment) or scorers or reader_judge or _open_fallback(experiment)
    return Judge(judging, gamma=experiment.ajet.rollout.gamma, ranks=getattr(judging, "ranks", None))


def prepare_judge(experiment: Experiment, run: RunDirectory | None = None) -> None:
    """Prepare the judge before the first attempt, for example write rubrics. Raises UserError.

    Args:
        run: folder of the run; None without a run.
    """
    if prepare := _find_judge(experiment).prepare:
        load_code(prepare)(experiment, run)


def _find_judge(experiment: Experiment) -> PluginPart:
    """Return the plug-in part of `task_judge.judge_type`. Raises ConfigError for an unknown type."""
    judge_type = experiment.ajet.task_judge.judge_type
    judge_part = find_part("judge", judge_type)
    if judge_part is None:
        raise ConfigError(
            f"There is no judge type named {judge_type}.",
            where="task_judge.judge_type",
            expected=", ".join(find_all_parts("judge")),
        )
    return judge_part


def _open_fallback(experiment: Experiment) -> Judging | None:
    """Return the judge of the first plug-in that offers one for an experiment without a judge, or None."""
    openers: list[JudgeOpener] = [load_code(reference) for reference in list_references("fallback_judges")]
    return next((judging for opener in openers if (judging := opener(experiment)) is not None), None)


def open_by_reference(experiment: Experiment) -> Judging | None:
    """Open the user's judge named by `task_judge.judge_protocol`: a scorer function, another function, or a class.

    Returns:
        None if the key is unset.

    Raises:
        ConfigError: the reference is no judge, or the judge's constructor failed.
        UnresolvedReferenceError: the reference names nothing.
    """
    key = "task_judge.judge_protocol"
    reference = experiment.ajet.task_judge.judge_protocol
    if not reference:
        return None
    from ajet.config import resolve_reference
    from ajet.config.functions import is_function, require_order
    from ajet.task_judge.trl_reward import is_trl_reward

    function_or_class = resolve_reference(reference, base=experiment.base, key=key)
    # A function with a scorer's parameters, such as `model_answer`, is run as the only scorer.
    if is_scorer_function(function_or_class) and not is_trl_reward(function_or_class):
        judge = experiment.ajet.task_judge.replace_judges(scorer=reference)
        settings = experiment.ajet.model_copy(update={"task_judge": judge})
        return ScorerJudge(replace(experiment, ajet=settings), named_by=f"ajet.{key}")
    if is_function(function_or_class):
        function_or_class = _make_function_judge(function_or_class, reference, key=key)
    compute_reward = getattr(function_or_class, "compute_reward", None)
    if not isinstance(function_or_class, type) or not callable(compute_reward):
        raise ConfigError(
            f"{reference} is not a judge.",
            where=key,
            expected="a function of (task, output), or a class with compute_reward(workflow_task, workflow_output), "
            "such as a subclass of BaseJudge",
        )
    parameter_names = ("workflow_task", "workflow_output")
    require_order(
        inspect.unwrap(compute_reward), parameter_names, key=key, reference=f"{reference}.compute_reward", method=True
    )
    try:
        constructor = getattr(function_or_class, "of_experiment", None)
        judging: Judging = function_or_class(experiment.config) if constructor is None else constructor(experiment)
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(
            f"The judge {reference} could not be created: {type(error).__name__}: {error}",
            where=key,
            expected="a class whose constructor takes the configuration only",
            do="write `def __init__(self, config):`, or subclass ajet.task_judge.base_judge.BaseJudge",
        ) from error
    return judging


def check_functions(experiment: Experiment) -> None:
    """Check the parameters of judges and scorers that are functions in files, without running the files.

    Raises:
        ConfigError: a parameter cannot be filled.
        UnresolvedReferenceError: a reference names nothing.
    """
    from ajet.task_judge.scorers.bound import BoundScorer
    from ajet.task_judge.trl_reward import is_trl_reward

    judge = experiment.ajet.task_judge
    if judge.judge_type != "customized_protocol":
        return
    arguments: dict[tuple[str | int, ...], Mapping[str, Any]] = {}
    arguments |= {
        ("task_judge", "scorers", index, "name"): settings.arguments for index, settings in enumerate(judge.scorers)
    }
    arguments |= {
        ("task_judge", "stages", index, "scorer"): settings.arguments for index, settings in enumerate(judge.stages)
    }
    for path, reference in judge.list_judges():
        key = f"ajet.{'.'.join(map(str, path))}"
        parameters = read_parameters_of(reference, base=experiment.base, key=key) if is_reference(reference) else None
        if parameters is None:  # not a function in a file
            continue
        if path[-1] != "judge_protocol" or (is_scorer_function(parameters) and not is_trl_reward(parameters)):
            name = parse_reference(reference, key=key).name
            BoundScorer(parameters, name, arguments.get(path, {}), experiment, key=key)
        else:
            _make_function_judge(parameters, reference, key=key)


def _make_function_judge(function: Callable[..., Any], reference: str, *, key: str) -> type[Any]:
    """Return the judge class of a function with ajet's parameters or TRL's. Raises ConfigError for any others."""
    from ajet.task_judge.trl_reward import adapt_trl_reward, is_trl_reward, refuse_other_signature

    if is_trl_reward(function):
        function = adapt_trl_reward(function, reference, key=key)
    refuse_other_signature(function, reference, key=key)
    return make_judge_class(function, reference, key=key)


def make_judge_class(function: Callable[..., Any], reference: str, *, key: str) -> type[Any]:
    """Return a judge class that calls `function(task, output)`, plain or `async`; `task` is the Task.

    The function may return any value of `BaseJudge.compute_reward`; an exception is a judge failure.

    Args:
        reference: The function's reference, for the class's name and for errors.
        key: Configuration key of the reference.

    Raises:
        ConfigError: the function does not take two arguments.
    """
    require_callable_with(function, ("task", "output"), key=key, reference=reference)

    async def compute_reward(self: Any, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        return await function(workflow_task.task, workflow_output)

    def compute_plain(self: Any, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        return function(workflow_task.task, workflow_output)

    class UserFunctionJudge:
        def __init__(self, config: Any) -> None:
            """Accept the composed config; a function does not use the config."""

    # A plain function is called in its own thread, an async function on the judges' loop.
    method = compute_reward if inspect.iscoroutinefunction(function) else compute_plain
    UserFunctionJudge.compute_reward = method  # type: ignore[attr-defined]
    UserFunctionJudge.__name__ = UserFunctionJudge.__qualname__ = parse_reference(reference, key=key).name
    UserFunctionJudge.written_at = Path(locate_function(function)).name  # type: ignore[attr-defined]
    UserFunctionJudge.__module__ = getattr(function, "__module__", None) or __name__
    return UserFunctionJudge
