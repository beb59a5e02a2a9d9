"""openai-agents, unmodified: its default Responses model and its Chat Completions model."""

from typing import Any

import pytest

from tests.support.client_fixtures import FINAL, QUESTION, SYSTEM, Cell, Plays, Stage, Told, cases, play_and_prove
from tests.support.client_fixtures import add as add_numbers

pytestmark = pytest.mark.slow

PLAYS = Plays()


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return add_numbers(a, b)


async def play(on: Stage, streaming: bool, *, use_responses: bool, strict: bool) -> Told:
    from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
    from agents.models.openai_provider import OpenAIProvider
    from openai import AsyncOpenAI

    pieces: list[str] | None = None
    told_usage = ModelSettings(include_usage=True)  # streams of Chat Completions leave it out otherwise
    tool = function_tool(add) if strict else function_tool(add, strict_mode=False)
    agent = Agent(name="calculator", instructions=SYSTEM, tools=[tool], model="gpt-4o")
    async with AsyncOpenAI(base_url=on.endpoint.base_url, api_key=on.endpoint.api_key) as client:
        provider = OpenAIProvider(openai_client=client, use_responses=use_responses)
        config = RunConfig(model_provider=provider, tracing_disabled=True, model_settings=told_usage)
        if streaming:
            stream = Runner.run_streamed(agent, QUESTION, run_config=config)
            pieces = await last_text(stream)
            result: Any = stream
        else:
            result = await Runner.run(agent, QUESTION, run_config=config)
    usage = [(answer.usage.input_tokens, answer.usage.output_tokens) for answer in result.raw_responses]
    return Told(result.final_output, usage, pieces)


async def last_text(stream: Any) -> list[str]:
    """Pieces of the last reply's text."""
    pieces: list[str] = []
    async for event in stream.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.created":
            pieces.clear()
        elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    return pieces


@PLAYS.cells("openai-agents", "responses")
async def responses(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, use_responses=True, strict=not streaming)


@PLAYS.cells("openai-agents", "chat")
async def chat(on: Stage, streaming: bool) -> Told:
    return await play(on, streaming, use_responses=False, strict=not streaming)


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)


@pytest.mark.parametrize("use_responses", [False, True])
def test_with_its_default_of_strict_tools_a_stream_begins_when_the_reply_is_known_to_be_good(
    use_responses: bool,
) -> None:
    async def strict(on: Stage, streaming: bool) -> Told:
        told = await play(on, streaming, use_responses=use_responses, strict=True)
        assert told.pieces == [FINAL]
        told.pieces = None
        return told

    play_and_prove(Cell("openai-agents", "responses" if use_responses else "chat", True), strict)
