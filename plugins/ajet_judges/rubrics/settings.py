"""Finds the models that write rubrics and grade: `task_judge.judges`, or the model of `rubrics_auto_grader`.

Invariant: `model_name` has a default, used only if rubrics are configured. Address and key come from the section, or
from the environment as in AgentJet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr, ValidationError

from ajet.config.other_models import find_other_server, read_api_key
from ajet.environment.chat_model import ChatModel
from ajet.environment.files import first_message
from ajet.schema.errors import ConfigError
from ajet_judges.config import JudgeKeys
from ajet_judges.model_judge.judge import ModelJudge
from ajet_judges.model_judge.panel import PanelMember
from ajet_judges.rubrics.examples import KEY
from ajet_judges.rubrics.grading import AnswerGrader, GradeScale

if TYPE_CHECKING:
    from ajet.config import Experiment


def read_named_model(experiment: Experiment) -> ChatModel:
    """Return the model that the section `rubrics_auto_grader` names.

    Raises:
        ConfigError: the address is malformed.
        UserError: there is no server.
    """
    grader = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    key = grader.api_key.get_secret_value() if grader.api_key is not None else ""
    url = grader.base_url
    if url is None:
        server = find_other_server()
        url, key = server.base_url, key or server.keys[0]
    key = key or read_api_key("OPENAI_API_KEY")
    try:
        return ChatModel(base_url=url, model=grader.model_name, api_key=SecretStr(key))
    except ValidationError as error:
        raise ConfigError(f"{url} is not a valid URL: {first_message(error)}.", where=f"{KEY}.base_url") from None


def open_grader(experiment: Experiment) -> AnswerGrader:
    """Open the grader of `rubrics_auto_grader`, with the models of `judges` or the model that the section names.

    Raises:
        ConfigError: the scale or the template is wrong.
        UserError: there is no model, or verdicts cannot be stored.
    """
    settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    if settings.min_score >= settings.max_score:
        raise ConfigError(
            f"The scale of grades from {settings.min_score:g} to {settings.max_score:g} is empty.",
            where=f"{KEY}.max_score",
            expected="more than min_score",
        )
    judge = ModelJudge.of_experiment(experiment, lambda: PanelMember(read_named_model(experiment)))
    return AnswerGrader(
        judge,
        scale=GradeScale(settings.min_score, settings.max_score),
        template=settings.custom_evaluation_prompt,
        where=f"{KEY}.custom_evaluation_prompt",
        may_not_apply=True,
    )
