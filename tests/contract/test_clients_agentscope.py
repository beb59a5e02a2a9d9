"""agentscope 1.0.21, unmodified: a ReActAgent over its three model classes.

Nothing of ajet's is in between but where Chat Completions stream: agentscope's own class cannot read such a stream
with openai 3 (it looks into `delta.audio`, which is always there now, and None), so there the tuner is the model.
"""

from typing import Any

import pytest

from ajet import ModelTuner
from tests.support.client_fixtures import QUESTION, SYSTEM, Cell, Plays, Stage, Told, cases, play_and_prove
from tests.support.client_fixtures import add as add_numbers

pytestmark = pytest.mark.slow

PLAYS = Plays()


def model(on: Stage, dialect: str, streaming: bool) -> tuple[Any, Any]:
    from agentscope import formatter, model

    shared = {"api_key": on.endpoint.api_key, "stream": streaming}
    openai_place = {"client_kwargs": {"base_url": on.endpoint.base_url}}
    if dialect == "chat" and streaming:
        tuner = ModelTuner(None, on.session)
        tuner.stream = True
        return tuner, formatter.OpenAIChatFormatter()
    if dialect == "chat":
        return model.OpenAIChatModel("gpt-4o", **shared, **openai_place), formatter.OpenAIChatFormatter()
    if dialect == "responses":
        return model.OpenAIResponseModel("gpt-4o", **shared, **openai_place), formatter.OpenAIResponseChatFormatter()
    made = model.AnthropicChatModel("ajet", **shared, client_kwargs={"base_url": on.root})
    return made, formatter.AnthropicChatFormatter()


async def play(on: Stage, streaming: bool, dialect: str) -> Told:
    from agentscope.agent import ReActAgent
    from agentscope.memory import InMemoryMemory
    from agentscope.message import Msg, TextBlock
    from agentscope.tool import Toolkit, ToolResponse

    async def add(a: int, b: int) -> ToolResponse:
        """Add two numbers.

        Args:
            a (`int`): one
            b (`int`): the other
        """
        return ToolResponse(content=[TextBlock(type="text", text=str(add_numbers(a, b)))])

    toolkit = Toolkit()
    toolkit.register_tool_function(add)
    llm, form = model(on, dialect, streaming)
    agent = ReActAgent("calculator", SYSTEM, llm, form, toolkit=toolkit, memory=InMemoryMemory())
    agent.set_console_output_enabled(False)
    reply = await agent(Msg("user", QUESTION, "user"))
    return Told(reply.get_text_content())


@PLAYS.cells("agentscope", "chat")
async def chat(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, "chat")


@PLAYS.cells("agentscope", "responses")
async def responses(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, "responses")


@PLAYS.cells("agentscope", "anthropic")
async def anthropic(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, "anthropic")


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
