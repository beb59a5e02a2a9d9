"""Lists the judging models among the services that a run needs.

Invariant: one reachable model is enough, because models replace each other. The check samples no token.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ajet.config.services import RequiredService
from ajet_judges.config import JudgeKeys

if TYPE_CHECKING:
    from ajet.config import Experiment


def list_services(experiment: Experiment) -> Iterator[RequiredService]:
    """Yield the models of `task_judge.judges` as one service, or the model of `rubrics_auto_grader` if it judges."""
    judges = JudgeKeys.of(experiment.ajet).judges
    if not judges and experiment.ajet.task_judge.judge_type != "rubrics_auto_grader":
        return  # no model judges, so the modules below are not imported
    from ajet.environment.chat_model import explain_no_model
    from ajet_judges.model_judge.settings import JUDGES, list_judge_models

    models, key = [member.model for member in list_judge_models(judges)], JUDGES
    if not models:
        from ajet_judges.rubrics.examples import KEY
        from ajet_judges.rubrics.settings import read_named_model

        models, key = [read_named_model(experiment)], KEY
    yield RequiredService(
        "judge",
        " or ".join(dict.fromkeys(model.place for model in models)),
        key,
        partial(explain_no_model, models, named="judge"),
        f"an OpenAI-compatible server that has {models[0].model}, or one of the further models",
        "start it, or fix model, base_url and api_key_env there",
    )
