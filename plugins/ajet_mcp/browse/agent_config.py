"""The section `browse_agent` of AgentRL's `agent_config.yml`.

Invariants: an unusable setting raises one ConfigError before any request, without showing a key. Models in the file
take precedence. Environment variables are read only if the file names no model.
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
    """Settings of the browse agent; lengths are tokens of the trained model."""

    model_config = ConfigDict(extra="forbid")

    models: tuple[ChatModel, ...] = ()
    """Models in the order of use; each is tried after the failure of the previous model."""
    max_retries: int = Field(default=3, ge=1)
    """Requests to one model before the next model is tried."""
    retry_delay: float = Field(default=2.0, ge=0)
    """Seconds before the second request; doubled for each further request."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds until a request times out."""
    max_prompt_length: int = Field(default=60_000, ge=1)
    """Tokens of a page sent to a model; the rest is cut."""
    min_prompt_length: int = Field(default=1_500, ge=0)
    """A result up to this length is shown unchanged."""
    browse_tools: tuple[str, ...] = ("fetch_url", "visit", "execute_code")
    default_purpose: str | dict[str, str] = Field(default_factory=dict)
    """Purpose of a call without a stated purpose: one for all tools, or one per tool name."""
    status: bool = True
    """If False, results are shown unchanged."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, passed to the server of the model."""
    enable_logging: bool = False
    """Accepted and ignored: each request is recorded with its episode, not in separate files."""
    tokenizer_path: str | None = None
    """Accepted and ignored: the tokenizer of the trained model counts."""

    def purpose_for(self, tool: str) -> str:
        """Return the default purpose of a call of this tool."""
        purposes = self.default_purpose
        return purposes if isinstance(purposes, str) and purposes else dict(purposes or {}).get(tool, DEFAULT_PURPOSE)


def browse_agent_of(config: Any) -> BrowseAgent | None:
    """Return the browse agent of a run, or None if `browse` or `status` is off.

    Raises:
        ConfigError: the section cannot be used, or no model is named.
    """
    config_name, is_enabled = config.ajet.environment.agent_config, config.ajet.rollout.mcp_agent.browse
    if not is_enabled:
        return None
    agent = (
        section_of(config_name, Path(config.ajet.base_dir), "browse_agent", BrowseAgent)
        if config_name
        else BrowseAgent()
    )
    if not agent.status:
        return None
    return agent if agent.models else agent.model_copy(update={"models": (_read_model_variables(config_name),)})


def _read_model_variables(named: str | None) -> ChatModel:
    """Return the model that the environment variables name. Raises ConfigError without them."""
    url, model = read_outside_variable(URL_VARIABLE), read_outside_variable(MODEL_VARIABLE)
    if not url or not model:
        raise ConfigError(
            "The browse agent has no model.",
            where=KEY if named else SWITCH,
            expected=f"a file in the form of AgentRL's agent_config.yml, or the variables {URL_VARIABLE} and "
            f"{MODEL_VARIABLE}",
            do=f"`cp {EXAMPLE} agent_config.yml`, edit it, and set ajet.environment.agent_config: agent_config.yml",
        )
    try:
        return ChatModel(base_url=url, model=model, api_key=SecretStr(read_api_key(KEY_VARIABLE)))
    except ValidationError as error:
        raise ConfigError(f"{URL_VARIABLE}: {first_message(error)}.", where=URL_VARIABLE) from None
