"""Which judge an experiment has: `task_judge.judge_type` by name, `judge_protocol` by reference, or its scorers.

Invariant: a run starts with a judge that was made, or does not start; what is wrong is one UserError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from loguru import logger

from ajet.schema.errors import ConfigError, UserError
from ajet.task_judge.judge import Judge, Judging
from ajet.task_judge.scorers.bound import is_scorers
from ajet.task_judge.scorers.judge import ScorerJudge, opened_scorers

if TYPE_CHECKING:
    from ajet.config import Experiment

Opener = Callable[["Experiment"], "Judging | None"]
_openers: dict[str, Opener] = {}


def register(judge_type: str) -> Callable[[Opener], Opener]:
    """Make the decorated function open judges of this `judge_type`; it answers None where the task reader's own judge
    is to decide."""

    def keep(opener: Opener) -> Opener:
        _openers[judge_type] = opener
        return opener

    return keep


def open_judge(experiment: Experiment, reader_judge: Judging | None = None) -> Judge:
    """The experiment's judge: the one or the scorers it names, else the task reader's own, else models that rank where
    it names some, else none. Raises ConfigError, UnresolvedReference, or the UserError that the judge raises when it is
    made."""
    settings = experiment.ajet
    opener = _openers.get(settings.task_judge.judge_type)
    if opener is None:
        raise ConfigError(
            f"The judge type {settings.task_judge.judge_type} is not part of this version.",
            where="task_judge.judge_type",
            expected=", ".join(sorted(_openers)),
        )
    scorers = opened_scorers(experiment)
    judging = opener(experiment) or scorers or reader_judge
    if judging is None and settings.task_judge.judges:
        from ajet.task_judge.model_judge import ModelJudge

        return Judge(models := ModelJudge.of_experiment(experiment), gamma=settings.rollout.gamma, ranks=models)
    return Judge(judging, gamma=settings.rollout.gamma, ranks=getattr(judging, "ranks", None))


@register("rubrics_auto_grader")
def _by_rubrics(experiment: Experiment) -> Judging:
    from ajet.task_judge.rubrics.judge import RubricsJudge

    judge = experiment.ajet.task_judge
    if judge.scorer or judge.scorers or judge.stages:
        raise ConfigError(
            "task_judge.judge_type is rubrics_auto_grader, and scorers are named; one of them decides.",
            where="ajet.task_judge.judge_type",
            do="remove one; a task's own rubric is graded by the scorer `rubric`",
        )
    if judge.judge_protocol:
        logger.warning("task_judge.judge_protocol has no effect: judge_type is rubrics_auto_grader")
    return RubricsJudge(experiment)


@register("customized_protocol")
def _by_reference(experiment: Experiment) -> Judging | None:
    from ajet.config import resolve_reference
    from ajet.config.functions import is_function, require_order
    from ajet.task_judge.function import judge_from
    from ajet.task_judge.trl_reward import from_trl, is_trl_reward, refuse_other_signature

    key = "task_judge.judge_protocol"
    reference = experiment.ajet.task_judge.judge_protocol
    if not reference:
        return None
    kind = resolve_reference(reference, base=experiment.base, what=key)
    if is_trl_reward(kind):
        kind = from_trl(kind, reference, what=key)
    elif is_scorers(kind):
        judge = experiment.ajet.task_judge.deciding(scorer=reference)
        settings = experiment.ajet.model_copy(update={"task_judge": judge})
        return ScorerJudge(replace(experiment, ajet=settings), named_by=f"ajet.{key}")
    if is_function(kind):
        refuse_other_signature(kind, reference, what=key)
        kind = judge_from(kind, reference, what=key)
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
