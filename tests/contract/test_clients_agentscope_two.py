"""agentscope 2.0.11, unmodified: an Agent over its three model classes. They are played where it is installed:
test_agentscope_two.py runs them in an environment of that kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agentscope_two import allow, needs_agentscope_two
from tests.support.client_fixtures import QUESTION, SYSTEM, Cell, Plays, Stage, Told, cases, play_and_prove
from tests.support.client_fixtures import add as add_numbers

pytestmark = [pytest.mark.extra_slow, needs_agentscope_two]

PLAYS = Plays()


def model(on: Stage, dialect: str, streaming: bool) -> Any:
    from agentscope import credential, model

    key, shared = on.endpoint.api_key, {"model": "gpt-4o", "stream": streaming}
    if dialect == "anthropic":
        return model.AnthropicChatModel(credential.AnthropicCredential(api_key=key, base_url=on.root), **shared)
    made = model.OpenAIChatModel if dialect == "chat" else model.OpenAIResponseModel
    return made(credential.OpenAICredential(api_key=key, base_url=on.endpoint.base_url), **shared)


async def play(on: Stage, streaming: bool, dialect: str) -> Told:
    from agentscope.agent import Agent, InjectionConfig
    from agentscope.message import UserMsg
    from agentscope.tool import Toolkit

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(add_numbers(a, b))

    tools, plain = Toolkit([allow(add)]), InjectionConfig(inject_runtime_state=False)
    agent = Agent("calculator", SYSTEM, model(on, dialect, streaming), tools, injection_config=plain)
    reply = await agent.reply(UserMsg("user", QUESTION))
    return Told(reply.get_text_content() or "")


@PLAYS.cells("agentscope 2", "chat")
async def chat(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, "chat")


@PLAYS.cells("agentscope 2", "responses")
async def responses(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, "responses")


@PLAYS.cells("agentscope 2", "anthropic")
async def anthropic(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, "anthropic")


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
