"""The `anthropic` package for Python, unmodified: sync and async, whole replies, streams and the tool runner."""

from typing import Any

import anthropic
import pytest

from tests.support.client_fixtures import (
    PARAMETERS,
    QUESTION,
    SYSTEM,
    Cell,
    Plays,
    Stage,
    Told,
    add,
    cases,
    play_and_prove,
)

pytestmark = pytest.mark.slow

PLAYS = Plays()
TOOL: Any = {"name": "add", "description": "Adds.", "input_schema": PARAMETERS}
ASKED: dict[str, Any] = {"model": "ajet", "max_tokens": 1000, "system": SYSTEM, "tools": [TOOL]}


def client(on: Stage) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=on.root, api_key=on.endpoint.api_key)


def async_client(on: Stage) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=on.root, api_key=on.endpoint.api_key)


def opening() -> list[Any]:
    return [{"role": "user", "content": QUESTION}]


def results(message: Any) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(add(**block.input))}
        for block in message.content
        if block.type == "tool_use"
    ]


def text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@PLAYS.cells("anthropic (sync)", "anthropic", "whole")
def whole(on: Stage, streaming: bool) -> Told:
    messages, usage = opening(), []
    with client(on) as model:
        while True:
            counted = model.messages.count_tokens(model="ajet", system=SYSTEM, tools=[TOOL], messages=messages)
            answer = model.messages.create(messages=messages, **ASKED)
            assert counted.input_tokens == answer.usage.input_tokens
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
            if answer.stop_reason != "tool_use":
                return Told(text(answer), usage)
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results(answer)}]


@PLAYS.cells("anthropic (sync)", "anthropic", "streaming")
def events(on: Stage, streaming: bool) -> Told:
    messages, usage = opening(), []
    with client(on) as model:
        while True:
            with model.messages.stream(messages=messages, **ASKED) as stream:
                pieces = list(stream.text_stream)
                answer = stream.get_final_message()
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
            if answer.stop_reason != "tool_use":
                return Told(text(answer), usage, pieces)
            said = [block.model_dump(exclude_none=True) for block in answer.content]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": results(answer)}]


@PLAYS.cells("anthropic (async)", "anthropic", "whole")
async def runner(on: Stage, streaming: bool) -> Told:
    async with async_client(on) as model:
        answers = [answer async for answer in model.beta.messages.tool_runner(**_runner())]
    return Told(text(answers[-1]), [(answer.usage.input_tokens, answer.usage.output_tokens) for answer in answers])


@PLAYS.cells("anthropic (async)", "anthropic", "streaming")
async def streaming_runner(on: Stage, streaming: bool) -> Told:
    pieces: list[str] = []
    usage = []
    async with async_client(on) as model:
        async for stream in model.beta.messages.tool_runner(**_runner(), stream=True):
            pieces = [event.text async for event in stream if event.type == "text"]
            answer = await stream.get_final_message()
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
    return Told("".join(pieces), usage, pieces)


def _runner() -> dict[str, Any]:
    async def ran(a: int, b: int) -> str:
        """Adds."""
        return str(add(a, b))

    return {**ASKED, "messages": opening(), "tools": [anthropic.beta_async_tool(ran, name="add")]}


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
