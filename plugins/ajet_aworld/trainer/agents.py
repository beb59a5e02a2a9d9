"""AgentTrainer's agent as data: what it was made of, so that each episode makes one anew, on whatever machine.

Invariants: which model it asks is never carried (it is the tuned one); a value of the environment stands by its
variable's name, so no token is written; what is no data is refused by name, never dropped.
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
"""What says which model is asked, and how."""
_PLAIN = (
    "tool_names", "mcp_servers", "mcp_config", "black_tool_actions", "feedback_tool_result",
    "wait_tool_result", "system_prompt", "use_tools_in_prompt", "llm_retry_delay", "max_loop_steps",
)  # fmt: skip
"""What else an Agent is made of, under the names of its arguments."""
_SECRETS = re.compile(r"(?i)(.*[-_])?(authorization|api-?key|cookie)$|.*[-_](token|key|secret|password)$")
"""Names, of headers and of variables, whose value may not be written down."""
_VARIABLE = re.compile(r"\$\((\w+)\)")
"""How a value that only the environment may have is written."""
_SECRET_ENDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
"""How the names of variables end whose values are looked for."""
_LEAST = 8
"""Characters of a value that is looked for among the environment's."""


def described(agent: Any, base: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the `rollout` section, what the configuration's own section says). Raises ValueError."""
    own = {"user_workflow": f"{__name__}->DescribedAgent"}
    if isinstance(agent, (str, Path)):
        text = str(agent)
        if "->" in text or ":" in text:
            return {"user_workflow": text}, {}
        return own, {"agent": _from_file(base / text)}
    if isinstance(agent, type) and issubclass(agent, AworldAgentLoop):
        import inspect

        return {"user_workflow": f"{Path(inspect.getfile(agent)).resolve()}->{agent.__name__}"}, {}
    if not callable(getattr(agent, "name", None)) or not hasattr(agent, "conf"):
        raise ValueError(
            f"the agent is a {type(agent).__name__}; expected an AWorld Agent, the path of a YAML file that describes "
            "one, or a reference such as loop.py->MyAgentLoop (for a Swarm: its build_agents() returns it)"
        )
    return own, {"agent": _from_agent(agent)}


class DescribedAgent(AworldAgentLoop):
    """Builds the agent that the configuration's section describes."""

    name: str = "described_agent"

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises MissingExtraError; UserError for a secret that is not set here."""
        super().check(config)
        filled(config.aworld.agent.to_dict())

    def build_agents(self) -> Any:
        from aworld.agents.llm_agent import Agent
        from aworld.config import AgentConfig

        told = filled(self._playing().config.aworld.agent.to_dict())
        conf = told.pop("conf", None) or {}
        model = {**conf.pop("llm_config", {}), **{key: conf.pop(key) for key in list(conf) if key.startswith("llm_")}}
        model = {key: value for key, value in model.items() if key not in _MODEL and value is not None}
        at, name = self.get_llm_server_address(), self.get_llm_server_model_name()
        made = AgentConfig(**conf, **model, llm_base_url=str(at), llm_model_name=str(name), llm_api_key="-")
        return Agent(conf=made, **told)


def _from_file(path: Path) -> dict[str, Any]:
    import yaml

    if not path.is_file():
        raise ValueError(f"the agent's file {path} does not exist")
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as problem:
        raise ValueError(f"the agent's file {path} is no YAML: {problem}") from None
    if not isinstance(told, Mapping) or not told.get("name"):
        raise ValueError(
            f"the agent's file {path} describes none: it wants a `name`, and what else an Agent is made of"
        )
    return _written({key: value for key, value in told.items()}, "")


def _from_agent(agent: Any) -> dict[str, Any]:
    from aworld.agents.llm_agent import Agent

    if type(agent) is not Agent:
        raise ValueError(
            f"the agent is of a class of its own, {type(agent).__name__}; write an AworldAgentLoop whose "
            "build_agents() makes it, and give its reference: loop.py->MyAgentLoop"
        )
    if agent.tools_aggregate_func != agent._tools_aggregate_func:
        raise ValueError("tools_aggregate_func is code; write an AworldAgentLoop whose build_agents() sets it")
    told = {name: getattr(agent, name, None) for name in _PLAIN}
    told = {name: value for name, value in told.items() if value not in (None, [], {})}
    conf = {key: value for key, value in dict(agent.conf).items() if key != "memory_config" and value is not None}
    model = {key: value for key, value in dict(conf.pop("llm_config", None) or {}).items() if value is not None}
    return _written(
        {"name": agent.name(), "desc": agent.desc(), **told, "conf": {**conf, "llm_config": _asked(model)}}, ""
    )


def _asked(model: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model's requests, without the model's name."""
    return {key: value for key, value in model.items() if key not in _MODEL}


def _written(value: Any, where: str) -> Any:
    """The value as it may be written down. Raises ValueError for code, and for a secret that no variable holds."""
    if isinstance(value, Mapping):
        if "llm_api_key" in value:
            value = _asked(value)
        found = {str(key): _written(each, f"{where}.{key}".lstrip(".")) for key, each in value.items()}
        for key, text in found.items():
            if _SECRETS.match(key) and isinstance(text, str) and text and not _VARIABLE.search(text):
                raise ValueError(
                    f"the agent's {where}.{key} is a secret that would be written down; put it into an environment "
                    f"variable ({TOKEN}, say) and take it from there"
                )
        return found
    if isinstance(value, (list, tuple, set)):
        return [_written(each, where) for each in value]
    if isinstance(value, Enum):
        return _written(value.value, where)
    if isinstance(value, str):
        return _by_variable(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "model_dump"):
        return _written(value.model_dump(), where)
    raise ValueError(
        f"the agent's {where} is a {type(value).__name__}, which is no data; build it in an AworldAgentLoop"
    )


def _by_variable(text: str) -> str:
    """The text with values of secret-looking variables of the environment by their names; a configuration's own `${`
    kept."""
    for name, value in sorted(os.environ.items(), key=lambda pair: -len(pair[1])):
        if len(value) >= _LEAST and name.endswith(_SECRET_ENDS) and value in text:
            text = text.replace(value, f"$({name})")
    return text.replace("${", "\\${")


def filled(value: Any) -> Any:
    """What `described` wrote, with the values of this environment. Raises UserError for a secret that is not set."""
    if isinstance(value, dict):
        return {key: filled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    if isinstance(value, str):
        return _VARIABLE.sub(_value, value)
    return value


def _value(found: re.Match[str]) -> str:
    """The variable's value; what has no secret's name and is not set may be a shell's words, and stays. Raises
    UserError."""
    name = found[1]
    if name in os.environ:
        return os.environ[name]
    if name.endswith(_SECRET_ENDS):
        raise UserError(
            f"The agent takes a secret from the environment variable {name}, and it is not set.",
            where=f"aworld.agent: $({name})",
            do=f"export {name}=…, or put it into .env, where this runs, too",
        )
    return found[0]
