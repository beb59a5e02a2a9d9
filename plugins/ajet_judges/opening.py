"""Creates this package's judges for a run, so that a run without them loads none of their code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from ajet.schema.errors import ConfigError
from ajet_judges.config import JudgeKeys

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet_judges.model_judge import ModelJudge
    from ajet_judges.rubrics.judge import RubricsJudge


def open_rubrics(experiment: Experiment) -> RubricsJudge:
    """Open the judge of `judge_type: rubrics_auto_grader`. Raises UserError."""
    from ajet_judges.rubrics.judge import RubricsJudge

    judge = experiment.ajet.task_judge
    if judge.scorer or judge.scorers or judge.stages:
        raise ConfigError(
            "task_judge.judge_type is rubrics_auto_grader, but scorers are set too.",
            where="ajet.task_judge.judge_type",
            do="remove one of them; the scorer `rubric` grades a task's own rubric",
        )
    if judge.judge_protocol:
        logger.warning("task_judge.judge_protocol has no effect: judge_type is rubrics_auto_grader")
    return RubricsJudge(experiment)


def open_ranking_models(experiment: Experiment) -> ModelJudge | None:
    """Return the models of `task_judge.judges` as a judge that ranks the attempts at a task; None without models.

    Raises:
        UserError: the models cannot be used.
    """
    if not JudgeKeys.of(experiment.ajet).judges:
        return None
    from ajet_judges.model_judge import ModelJudge

    models = ModelJudge.of_experiment(experiment)
    models.ranks = models
    return models
