"""The `openai` package for Python, unmodified: sync and async, whole replies and streams."""

import json
from typing import Any

import openai
import pytest

from ajet.tokens import Rendered, Renderer
from tests.support.client_fixtures import (
    CHAT_TOOL,
    PARAMETERS,
    QUESTION,
    SYSTEM,
    Cell,
    Plays,
    RawTalk,
    Stage,
    Told,
    add,
    cases,
    play_and_prove,
)

pytestmark = pytest.mark.slow

PLAYS = Plays()
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": False}
MODEL = "gpt-4o"
WITH_USAGE: Any = {"include_usage": True}


def client(on: Stage) -> openai.OpenAI:
    return openai.OpenAI(base_url=on.endpoint.base_url, api_key=on.endpoint.api_key)


def async_client(on: Stage) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=on.endpoint.base_url, api_key=on.endpoint.api_key)


def opening() -> list[Any]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


def called(arguments: str) -> str:
    return str(add(**json.loads(arguments)))


def results(calls: Any) -> list[Any]:
    return [{"role": "tool", "tool_call_id": call.id, "content": called(call.function.arguments)} for call in calls]


@PLAYS.cells("openai (sync)", "chat", "whole")
def chat_whole(on: Stage, streaming: bool) -> Told:
    messages, usage = opening(), []
    with client(on) as model:
        while True:
            answer = model.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
            usage.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
            said = answer.choices[0].message
            if not said.tool_calls:
                return Told(said.content, usage)
            messages += [said, *results(said.tool_calls)]


@PLAYS.cells("openai (sync)", "chat", "streaming")
def chat_chunks(on: Stage, streaming: bool) -> Told:
    messages, usage = opening(), []
    with client(on) as model:
        while True:
            pieces: list[str] = []
            calls: dict[int, dict[str, Any]] = {}
            for chunk in model.chat.completions.create(
                model=MODEL, messages=messages, tools=[CHAT_TOOL], stream=True, stream_options=WITH_USAGE
            ):
                if chunk.usage is not None:
                    usage.append((chunk.usage.prompt_tokens, chunk.usage.completion_tokens))
                for delta in [choice.delta for choice in chunk.choices]:
                    pieces += [delta.content] if delta.content else []
                    for call in delta.tool_calls or ():
                        known = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                        known["id"] += call.id or ""
                        known["name"] += call.function.name or ""
                        known["arguments"] += call.function.arguments or ""
            if not calls:
                return Told("".join(pieces), usage, pieces)
            told = [
                {"id": call["id"], "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
                for call in calls.values()
            ]
            messages.append({"role": "assistant", "content": "".join(pieces) or None, "tool_calls": told})
            for call in calls.values():
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": called(call["arguments"])})


@PLAYS.cells("openai (async)", "chat", "whole")
async def chat_parsed(on: Stage, streaming: bool) -> Told:
    tool = openai.pydantic_function_tool(_add_model(), name="add")
    messages, usage = opening(), []
    async with async_client(on) as model:
        while True:
            answer = await model.chat.completions.parse(model=MODEL, messages=messages, tools=[tool])
            usage.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
            said = answer.choices[0].message
            if not said.tool_calls:
                return Told(said.content, usage)
            messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
            messages += results(said.tool_calls)


def _add_model() -> Any:
    from pydantic import BaseModel

    class Add(BaseModel):
        """Adds."""

        a: int
        b: int

    return Add


@PLAYS.cells("openai (async)", "chat", "streaming")
async def chat_stream(on: Stage, streaming: bool) -> Told:
    messages, usage = opening(), []
    async with async_client(on) as model:
        while True:
            asked = model.chat.completions.stream(
                model=MODEL, messages=messages, tools=[CHAT_TOOL], stream_options=WITH_USAGE
            )
            async with asked as stream:
                pieces = [event.delta async for event in stream if event.type == "content.delta"]
                answer = await stream.get_final_completion()
            usage.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
            said = answer.choices[0].message
            if not said.tool_calls:
                return Told(said.content, usage, pieces)
            messages += [said, *results(said.tool_calls)]


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": called(item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]


def told(response: Any, usage: list[tuple[int, int]], pieces: list[str] | None = None) -> Told:
    return Told(response.output_text, usage, pieces)


@PLAYS.cells("openai (sync)", "responses", "whole")
def responses_remembered(on: Stage, streaming: bool) -> Told:
    asked: dict[str, Any] = {"input": QUESTION}
    usage = []
    with client(on) as model:
        while True:
            answer = model.responses.create(model=MODEL, instructions=SYSTEM, tools=[TOOL], **asked)
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
            if not (ran := outputs(answer)):
                return told(answer, usage)
            asked = {"input": ran, "previous_response_id": answer.id}


@PLAYS.cells("openai (sync)", "responses", "streaming")
def responses_events(on: Stage, streaming: bool) -> Told:
    history: list[Any] = opening()
    usage = []
    with client(on) as model:
        while True:
            pieces = []
            answer = None
            stream = model.responses.create(model=MODEL, input=history, tools=[TOOL], store=False, stream=True)
            for number, event in enumerate(stream):
                assert event.sequence_number == number
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                if event.type == "response.completed":
                    answer = event.response
            assert answer is not None
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
            if not (ran := outputs(answer)):
                return told(answer, usage, pieces)
            history += [*[item.model_dump(exclude_none=True) for item in answer.output], *ran]


@PLAYS.cells("openai (async)", "responses", "whole")
async def responses_replayed(on: Stage, streaming: bool) -> Told:
    history: list[Any] = opening()
    usage = []
    async with async_client(on) as model:
        while True:
            answer = await model.responses.create(model=MODEL, input=history, tools=[TOOL])
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
            if not (ran := outputs(answer)):
                return told(answer, usage)
            history += [*answer.output, *ran]


@PLAYS.cells("openai (async)", "responses", "streaming")
async def responses_stream(on: Stage, streaming: bool) -> Told:
    asked: dict[str, Any] = {"input": opening()}
    usage = []
    async with async_client(on) as model:
        while True:
            async with model.responses.stream(model=MODEL, tools=[TOOL], **asked) as stream:
                pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
                answer = await stream.get_final_response()
            usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
            if not (ran := outputs(answer)):
                return told(answer, usage, pieces)
            asked = {"input": ran, "previous_response_id": answer.id}


@PLAYS.cells("openai (sync)", "completions")
def completions(on: Stage, streaming: bool) -> Told:
    talk = RawTalk()
    with client(on) as model:
        while True:
            if streaming:
                chunks = list(model.completions.create(**talk.asked(), stream=True, stream_options=WITH_USAGE))
            else:
                chunks = [model.completions.create(**talk.asked())]
            if ended := talk.heard(chunks):
                return ended


@PLAYS.cells("openai (async)", "completions")
async def async_completions(on: Stage, streaming: bool) -> Told:
    talk = RawTalk()
    async with async_client(on) as model:
        while True:
            if streaming:
                stream = await model.completions.create(**talk.asked(), stream=True, stream_options=WITH_USAGE)
                chunks = [chunk async for chunk in stream]
            else:
                chunks = [await model.completions.create(**talk.asked())]
            if ended := talk.heard(chunks):
                return ended


@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_without_the_verbatim_extension_the_proof_names_a_token(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_anew(renderer: Renderer, before: Rendered, *said: Any, **_: Any) -> Rendered:
        _, _, messages, *tools = said
        return renderer.render(messages, *tools)

    monkeypatch.setattr(Renderer, "extend", encode_anew)
    cell = Cell("openai (sync)", dialect, False)
    with pytest.raises(AssertionError, match=r"token \d+: "):
        play_and_prove(cell, PLAYS[cell])
