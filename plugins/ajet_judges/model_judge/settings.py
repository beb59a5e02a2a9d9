"""Reads the settings of a run's model judge, from `task_judge` or AgentRL's `agent_config.yml`.

Invariant: wrong settings raise one ConfigError before any cost. `task_judge.judges` takes precedence over the file's
section `scorer_agent`. Without a model in both there is no judge, whatever `alien_llm_model` is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ajet.environment.chat_model import EXAMPLE, KEY, ChatModel, list_configured, section_of
from ajet.schema.errors import ConfigError
from ajet_judges.config import JudgeKeys
from ajet_judges.model_judge.panel import ModelPanel, PanelMember
from ajet_judges.model_judge.prompt import check_template
from ajet_judges.model_judge.store import NAME, JudgeStore

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.config.schema.model import JudgeModelConfig

JUDGES = "ajet.task_judge.judges"


class ScorerAgent(BaseModel):
    """The section `scorer_agent` of AgentRL's file."""

    model_config = ConfigDict(extra="ignore")

    models: tuple[ChatModel, ...] = Field(min_length=1)
    judge_prompt_template: str | None = None


class JudgeSettings(NamedTuple):
    """The parts of a `ModelJudge`: panel, template, votes."""

    panel: ModelPanel
    template: str
    votes: int
    temperature: float | None
    max_chars: int


def read_judge_settings(experiment: Experiment, otherwise: Callable[[], PanelMember] | None = None) -> JudgeSettings:
    """Return panel, template and number of votes of the experiment's model judge.

    Args:
        otherwise: returns the model to use if `judges` is empty.

    Raises:
        ConfigError: there is no model.
        UserError: verdicts cannot be stored.
    """
    settings = JudgeKeys.of(experiment.ajet)
    agent = None if settings.judges or otherwise is not None else _read_scorer_agent(experiment)
    members = (
        [PanelMember(model) for model in agent.models] if agent is not None else list_judge_models(settings.judges)
    )
    if not members and otherwise is not None:
        members = [otherwise()]
    template, location = settings.judge_prompt_template, "ajet.task_judge.judge_prompt_template"
    if template is None and agent is not None:
        template, location = agent.judge_prompt_template, f"{experiment.ajet.environment.agent_config}: scorer_agent"
    if not members:
        raise ConfigError(
            "No judging model is set.",
            where=JUDGES,
            expected="[{model: …, base_url: http://HOST:PORT/v1, api_key_env: …}, …], in order, "
            f"or scorer_agent in the file of {KEY.removeprefix('ajet.')}",
            do=f"see {EXAMPLE}",
        )
    limits = settings.model_judge
    has_budget = limits.max_calls is not None or limits.max_cost is not None
    store = JudgeStore(experiment.root / NAME) if limits.cache or has_budget else None
    panel = ModelPanel(members, limits, store, experiment.name)
    return JudgeSettings(panel, check_template(template, location), limits.votes, limits.temperature, limits.max_chars)


def list_judge_models(judges: Sequence[JudgeModelConfig]) -> list[PanelMember]:
    """Return the models of `task_judge.judges` in order, with keys from the environment. Raises ConfigError."""
    configured = zip(list_configured(judges, JUDGES), judges, strict=True)
    return [PanelMember(model, judge.price_in, judge.price_out) for model, judge in configured]


def _read_scorer_agent(experiment: Experiment) -> ScorerAgent | None:
    """Return the section `scorer_agent` of the file `environment.agent_config`, or None. Raises ConfigError."""
    config_name = experiment.ajet.environment.agent_config
    return section_of(config_name, experiment.base, "scorer_agent", ScorerAgent) if config_name else None
