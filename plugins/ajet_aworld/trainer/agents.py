"""Describes an AWorld agent as plain data, so each episode builds a new one, on any machine.

Invariants: the agent's model is never stored (it is the trained one). Values of environment variables are stored by the
variable's name, so no token is written. Values without a data form are refused by name, never dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ajet.schema.errors import UserError
from ajet_aworld.agent_loop import AworldAgentLoop
from ajet_mcp.servers import TOKEN

_MODEL = ("llm_provider", "llm_model_name", "llm_base_url", "llm_api_key", "llm_client_type", "llm_response_parser")
"""Settings of the model and its provider."""
_PLAIN = (
    "tool_names", "mcp_servers", "mcp_config", "black_tool_actions", "feedback_tool_result",
    "wait_tool_result", "system_prompt", "use_tools_in_prompt", "llm_retry_delay", "max_loop_steps",
)  # fmt: skip
"""Other arguments of an Agent, by name."""
_SECRETS = re.compile(r"(?i)(.*[-_])?(authorization|api-?key|cookie)$|.*[-_](token|key|secret|password)$")
"""Names of headers and variables whose value may not be written."""
_VARIABLE = re.compile(r"\$\((\w+)\)")
"""The stored form of an environment value."""
_SECRET_ENDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
"""Endings of variables whose values are searched for."""
_LEAST = 8
"""Shortest searched value, in characters."""


def describe_agent(agent: Any, base: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe an agent as two parts of a configuration.

    Args:
        agent: an AWorld Agent, the path of a YAML file, an AworldAgentLoop, or a reference to one.
        base: folder of relative paths.

    Returns:
        The section `ajet.rollout`, and the section `aworld`.

    Raises:
        ValueError: the agent cannot be described.
    """
    rollout = {"user_workflow": f"{__name__}->DescribedAgent"}
    if isinstance(agent, (str, Path)):
        text = str(agent)
        if "->" in text or ":" in text:
            return {"user_workflow": text}, {}
        return rollout, {"agent": _read_file(base / text)}
    if isinstance(agent, type) and issubclass(agent, AworldAgentLoop):
        import inspect

        return {"user_workflow": f"{Path(inspect.getfile(agent)).resolve()}->{agent.__name__}"}, {}
    if not callable(getattr(agent, "name", None)) or not hasattr(agent, "conf"):
        raise ValueError(
            f"the agent is a {type(agent).__name__}; expected an AWorld Agent, the path of a YAML file that describes "
            "one, or a reference such as loop.py->MyAgentLoop (for a Swarm: its build_agents() returns it)"
        )
    return rollout, {"agent": _read_agent(agent)}


class DescribedAgent(AworldAgentLoop):
    """Builds the agent described in the configuration."""

    name: str = "described_agent"

    @classmethod
    def check(cls, config: Any) -> None:
        """Raise MissingExtraError without AWorld, or UserError if a secret of the agent is not set on this machine."""
        super().check(config)
        fill_variables(config.aworld.agent.to_dict())

    def build_agents(self) -> Any:
        """Build the described agent with the trained model's address."""
        from aworld.agents.llm_agent import Agent
        from aworld.config import AgentConfig

        arguments = fill_variables(self._require_tuner().config.aworld.agent.to_dict())
        conf = arguments.pop("conf", None) or {}
        model_settings = {
            **conf.pop("llm_config", {}),
            **{key: conf.pop(key) for key in list(conf) if key.startswith("llm_")},
        }
        model_settings = {
            key: value for key, value in model_settings.items() if key not in _MODEL and value is not None
        }
        address, name = self.get_llm_server_address(), self.get_llm_server_model_name()
        agent_config = AgentConfig(
            **conf, **model_settings, llm_base_url=str(address), llm_model_name=str(name), llm_api_key="-"
        )
        return Agent(conf=agent_config, **arguments)


def _read_file(path: Path) -> dict[str, Any]:
    """Read an agent's description from a YAML file. Raises ValueError for a file that describes no agent."""
    import yaml

    if not path.is_file():
        raise ValueError(f"the agent's file {path} does not exist")
    try:
        description = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"the agent's file {path} is not valid YAML: {error}") from None
    if not isinstance(description, Mapping) or not description.get("name"):
        raise ValueError(
            f"the agent's file {path} describes no agent: it needs a `name` and the other arguments of an Agent"
        )
    return _serialize_value({key: value for key, value in description.items()}, "")


def _read_agent(agent: Any) -> dict[str, Any]:
    """Describe an AWorld Agent by the arguments that build it again. Raises ValueError if code belongs to the agent."""
    from aworld.agents.llm_agent import Agent

    if type(agent) is not Agent:
        raise ValueError(
            f"the agent has a class of your own, {type(agent).__name__}; write an AworldAgentLoop whose "
            "build_agents() creates it, and pass its reference: loop.py->MyAgentLoop"
        )
    if agent.tools_aggregate_func != agent._tools_aggregate_func:
        raise ValueError("tools_aggregate_func is code; write an AworldAgentLoop whose build_agents() sets it")
    arguments = {name: getattr(agent, name, None) for name in _PLAIN}
    arguments = {name: value for name, value in arguments.items() if value not in (None, [], {})}
    conf = {key: value for key, value in dict(agent.conf).items() if key != "memory_config" and value is not None}
    model_settings = {
        key: value for key, value in dict(conf.pop("llm_config", None) or {}).items() if value is not None
    }
    return _serialize_value(
        {
            "name": agent.name(),
            "desc": agent.desc(),
            **arguments,
            "conf": {**conf, "llm_config": _drop_model(model_settings)},
        },
        "",
    )


def _drop_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of model requests without those that name the model."""
    return {key: value for key, value in model.items() if key not in _MODEL}


def _serialize_value(value: Any, where: str) -> Any:
    """Return a value as plain data, with values of environment variables replaced by their names.

    Args:
        where: dotted name of the value, for errors.

    Raises:
        ValueError: the value is code, or a secret that no environment variable holds.
    """
    if isinstance(value, Mapping):
        if "llm_api_key" in value:
            value = _drop_model(value)
        serialized = {str(key): _serialize_value(item, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
        for key, text in serialized.items():
            if _SECRETS.match(key) and isinstance(text, str) and text and not _VARIABLE.search(text):
                raise ValueError(
                    f"the agent's {where}.{key} is a secret, which would be written to a file; put it into an "
                    f"environment variable (such as {TOKEN}) and refer to the variable"
                )
        return serialized
    if isinstance(value, (list, tuple, set)):
        return [_serialize_value(item, where) for item in value]
    if isinstance(value, Enum):
        return _serialize_value(value.value, where)
    if isinstance(value, str):
        return _hide_secrets(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "model_dump"):
        return _serialize_value(value.model_dump(), where)
    raise ValueError(
        f"the agent's {where} is a {type(value).__name__}, which cannot be written to a file; create it in an "
        "AworldAgentLoop"
    )


def _hide_secrets(text: str) -> str:
    """Replace values of secret variables in a text by `$(NAME)`, and escape a literal `${`."""
    # Longest values first, so that a value that contains another one is replaced completely.
    for name, value in sorted(os.environ.items(), key=lambda pair: -len(pair[1])):
        if len(value) >= _LEAST and name.endswith(_SECRET_ENDS) and value in text:
            text = text.replace(value, f"$({name})")
    return text.replace("${", "\\${")


def fill_variables(value: Any) -> Any:
    """Replace `$(NAME)` in a described agent by this process's variables. Raises UserError for a missing secret."""
    if isinstance(value, dict):
        return {key: fill_variables(item) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_variables(item) for item in value]
    if isinstance(value, str):
        return _VARIABLE.sub(_read_variable, value)
    return value


def _read_variable(match: re.Match[str]) -> str:
    """Return the value of a matched variable.

    An unset variable whose name does not look like a secret may be shell text and stays. Raises UserError otherwise.
    """
    name = match[1]
    if name in os.environ:
        return os.environ[name]
    if name.endswith(_SECRET_ENDS):
        raise UserError(
            f"The agent needs the environment variable {name}, which contains a secret and is not set.",
            where=f"aworld.agent: $({name})",
            do=f"export {name}=…, or put it into the .env file of this folder",
        )
    return match[0]
