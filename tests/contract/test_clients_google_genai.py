"""The `google-genai` package for Python, unmodified: sync and async, whole replies, streams, chats and functions."""

from typing import Any

import pytest
from google import genai
from google.genai import types

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
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="add", description="Adds.", parameters_json_schema=PARAMETERS)
    ]
)
ASKED = types.GenerateContentConfig(
    system_instruction=SYSTEM,
    tools=[TOOL],
    max_output_tokens=1000,
    thinking_config=types.ThinkingConfig(include_thoughts=True),
)


def client(on: Stage) -> genai.Client:
    return genai.Client(api_key=on.endpoint.api_key, http_options=types.HttpOptions(base_url=on.root))


def opening() -> list[Any]:
    return [types.Content(role="user", parts=[types.Part(text=QUESTION)])]


def results(parts: list[Any]) -> Any:
    calls = [part.function_call for part in parts if part.function_call]
    responses = [
        types.FunctionResponse(id=call.id, name=call.name, response={"output": add(**call.args)}) for call in calls
    ]
    return types.Content(role="user", parts=[types.Part(function_response=each) for each in responses])


def contents_of(chunks: list[Any]) -> list[Any]:
    return [chunk.candidates[0].content for chunk in chunks]


def parts_of(chunks: list[Any]) -> list[Any]:
    return [part for content in contents_of(chunks) for part in content.parts]


def text(parts: list[Any]) -> str:
    return "".join(part.text for part in parts if part.text and not part.thought)


def counted(usage: Any) -> tuple[int, int]:
    return usage.prompt_token_count, usage.candidates_token_count + (usage.thoughts_token_count or 0)


@PLAYS.cells("google-genai (sync)", "gemini", "whole")
def whole(on: Stage, streaming: bool) -> Told:
    contents, usage = opening(), []
    with client(on) as model:
        while True:
            answer = model.models.generate_content(model="ajet", contents=contents, config=ASKED)
            usage.append(counted(answer.usage_metadata))
            if not answer.function_calls:
                return Told(text(parts_of([answer])), usage)
            contents += [*contents_of([answer]), results(parts_of([answer]))]


@PLAYS.cells("google-genai (sync)", "gemini", "streaming")
def events(on: Stage, streaming: bool) -> Told:
    """Each event is sent back as a content of its own, as the package's chats do."""
    contents, usage = opening(), []
    with client(on) as model:
        while True:
            chunks = list(model.models.generate_content_stream(model="ajet", contents=contents, config=ASKED))
            usage.append(counted(chunks[-1].usage_metadata))
            parts = parts_of(chunks)
            if not any(part.function_call for part in parts):
                return Told(text(parts), usage, [chunk.text for chunk in chunks if chunk.text])
            contents += [*contents_of(chunks), results(parts)]


@PLAYS.cells("google-genai (async)", "gemini", "whole")
async def functions(on: Stage, streaming: bool) -> Told:
    """The package calls the function itself."""
    async with client(on).aio as model:
        config = types.GenerateContentConfig(system_instruction=SYSTEM, tools=[add])
        answer = await model.chats.create(model="ajet", config=config).send_message(QUESTION)
        return Told(answer.text or "")


@PLAYS.cells("google-genai (async)", "gemini", "streaming")
async def streamed(on: Stage, streaming: bool) -> Told:
    async with client(on).aio as model:
        chat = model.chats.create(model="ajet", config=ASKED)
        sent: Any = QUESTION
        while True:
            chunks = [chunk async for chunk in await chat.send_message_stream(sent)]
            parts = parts_of(chunks)
            if not any(part.function_call for part in parts):
                return Told(text(parts), None, [chunk.text for chunk in chunks if chunk.text])
            sent = results(parts).parts


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS))
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
