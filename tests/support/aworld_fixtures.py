"""Agents of AWorld over a real gateway, rollout and tool environment; only the model is a script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ajet.config.references import resolve_reference
from ajet.context_tracker import timelines
from ajet.engine.contract import TokenRequest
from ajet.schema.episode import Episode
from ajet.tokens import Renderer
from ajet_aworld.packages import install_finders
from ajet_proof.tokens.proof import prove as prove_record
from tests.support.chat_templates import tokenizer
from tests.support.rollouts import Stage, stage

install_finders()  # before a test imports AWorld
NOTES = Path(__file__).parent / "notes_server.py"
PRINTED = """
from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop
from train.adapter.verl.common import get_agent_tool_env_and_servers

class GaiaAgentLoop(AworldAgentLoop):
    def build_agents(self):
        # Get the environment configuration and server details.
        # Note: The MCP server must be running (Step 1) and the
        # MCP_SERVER_URL/MCP_SERVER_TOKEN environment variables must be set.
        gaia_env_config, gaia_env_servers = get_agent_tool_env_and_servers()

        return Agent(
            conf=AgentConfig(
                # Get the dynamic llm server address from the server manager.
                # The llm server is launched within VeRL.
                llm_base_url=self.get_llm_server_address(),
                llm_model_name=self.get_llm_server_model_name(),
                llm_api_key="dummy",
            ),
            name="gaia_super_agent",
            system_prompt="<your_system_prompt>",

            # MCP tool configuration for the agent
            mcp_config=gaia_env_config,
            mcp_servers=gaia_env_servers,
        )
"""
"""The page's agent, letter by letter (but for a long comment)."""


@cache
def words() -> Renderer:
    """A tokenizer of bytes whose chat template knows tools."""
    return Renderer(tokenizer("qwen25"))


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def turns(request: TokenRequest) -> list[str]:
    """What was said so far, a text for each message."""
    text = words().decode(request.prompt_ids)
    return [part.removesuffix("<|im_end|>\n") for part in text.split("<|im_start|>") if part][:-1]


def results(request: TokenRequest) -> list[str]:
    """What tools answered so far."""
    parts = words().decode(request.prompt_ids).split("<tool_response>\n")[1:]
    return [part.partition("\n</tool_response>")[0] for part in parts]


def question(request: TokenRequest) -> str:
    """The first message of the user."""
    return next(turn.partition("\n")[2] for turn in turns(request) if turn.startswith("user"))


def loop_from(folder: Path, code: str, name: str) -> Any:
    """The class of that name in a user's file."""
    (folder / "agent.py").write_text(code)
    return resolve_reference(f"agent.py->{name}", base=folder)


@contextmanager
def played(workflow: Any, script: Callable[[TokenRequest], str], **more: Any) -> Iterator[Stage]:
    """See `rollouts.stage`."""
    with stage(workflow, script, words=words(), **more) as made:
        yield made


def require_exact(episode: Episode, *, lines: int = 1) -> None:
    """Every token is what it should be, every turn extends its conversation, all are trained."""
    assert episode.failure is None, episode.failure
    assert {each.fork for each in episode.calls} == {None} and all(each.trained for each in episode.calls)
    proof = prove_record(episode.calls, episode.messages, episode.tools, Renderer(tokenizer("qwen25")))
    assert proof.ok, str(proof)
    found, untrained = timelines(episode.calls)
    assert len(found) == lines and not untrained


def program(path: Path) -> str:
    return f"{{command: {sys.executable}, args: [-I, {path}]}}"
