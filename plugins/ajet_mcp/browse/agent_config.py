"""The section `browse_agent` of AgentRL's `agent_config.yml`.

Invariant: what cannot be used is one ConfigError before anything is asked, and shows no key. Models that the file names
win over the environment's variables, which are read only where it names none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from ajet.config.other_models import read_api_key, read_outside_variable
from ajet.environment.chat_model import EXAMPLE, KEY, ChatModel, section_of
from ajet.environment.files import first_message
from ajet.schema.errors import ConfigError

SWITCH = "ajet.rollout.mcp_agent.browse"
URL_VARIABLE, KEY_VARIABLE, MODEL_VARIABLE = "BROWSE_LLM_BASE_URL", "BROWSE_LLM_API_KEY", "BROWSE_LLM_MODEL_NAME"
DEFAULT_PURPOSE = "Summarize the main content of this page."


class BrowseAgent(BaseModel):
    """The section; lengths are tokens of the model that plays."""

    model_config = ConfigDict(extra="forbid")

    models: tuple[ChatModel, ...] = ()
    """In the order in which they are asked."""
    max_retries: int = Field(default=3, ge=1)
    """How often one model is asked, before the next."""
    retry_delay: float = Field(default=2.0, ge=0)
    """Seconds before its second time; doubled before each further one."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds of one question."""
    max_prompt_length: int = Field(default=60_000, ge=1)
    """Of a page that a model is given; the rest is cut."""
    min_prompt_length: int = Field(default=1_500, ge=0)
    """A result that is no longer is shown as it is."""
    browse_tools: tuple[str, ...] = ("fetch_url", "visit", "execute_code")
    default_purpose: str | dict[str, str] = Field(default_factory=dict)
    """For a call that states none; by tool, or one for all."""
    status: bool = True
    """False: pages are handed over raw."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each question, as the models' server knows them."""
    enable_logging: bool = False
    """Whatever it says: each question is recorded with its episode, and there are no files beside that."""
    tokenizer_path: str | None = None
    """Whatever it says: see above."""

    def purpose_for(self, tool: str) -> str:
        """The purpose of a call of this tool that states none."""
        purposes = self.default_purpose
        return purposes if isinstance(purposes, str) and purposes else dict(purposes or {}).get(tool, DEFAULT_PURPOSE)


def browse_agent_of(config: Any) -> BrowseAgent | None:
    """The browse agent of a run; None where it has none, or `status` is off. Raises ConfigError."""
    named, wanted = config.ajet.environment.agent_config, config.ajet.rollout.mcp_agent.browse
    if not wanted:
        return None
    agent = section_of(named, Path(config.ajet.base_dir), "browse_agent", BrowseAgent) if named else BrowseAgent()
    if not agent.status:
        return None
    return agent if agent.models else agent.model_copy(update={"models": (_of_environment(named),)})


def _of_environment(named: str | None) -> ChatModel:
    url, model = read_outside_variable(URL_VARIABLE), read_outside_variable(MODEL_VARIABLE)
    if not url or not model:
        raise ConfigError(
            "A browse agent is wanted, and no model for it is named.",
            where=KEY if named else SWITCH,
            expected=f"a file as AgentRL's agent_config.yml, or {URL_VARIABLE} and {MODEL_VARIABLE}",
            do=f"`cp {EXAMPLE} agent_config.yml`, mend it, and set ajet.environment.agent_config: agent_config.yml",
        )
    try:
        return ChatModel(base_url=url, model=model, api_key=SecretStr(read_api_key(KEY_VARIABLE)))
    except ValidationError as error:
        raise ConfigError(f"{URL_VARIABLE}: {first_message(error)}.", where=URL_VARIABLE) from None
