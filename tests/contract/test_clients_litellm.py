"""litellm, unmodified, as a library: `completion` over OpenAI's and Anthropic's dialects, and `responses`."""

import json
from typing import Any

import pytest

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
RESPONSES_TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS}


@pytest.fixture(autouse=True)
def no_lookup_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def completion(on: Stage, streaming: bool, **place: Any) -> Told:
    import litellm

    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    usage = []
    while True:
        pieces: list[str] | None = None
        answer: Any
        if streaming:
            chunks: list[Any] = list(
                litellm.completion(
                    messages=messages, tools=[CHAT_TOOL], stream=True, stream_options={"include_usage": True}, **place
                )
            )
            pieces = [text for chunk in chunks if chunk.choices and (text := chunk.choices[0].delta.content)]
            answer = litellm.stream_chunk_builder(chunks, messages=messages)
        else:
            answer = litellm.completion(messages=messages, tools=[CHAT_TOOL], **place)
        usage.append((answer.usage.prompt_tokens, answer.usage.completion_tokens))
        said = answer.choices[0].message
        if not said.tool_calls:
            return Told(said.content, usage, pieces)
        messages.append(said)
        for call in said.tool_calls:
            content = str(add(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


@PLAYS.cells("litellm", "chat")
def chat(on: Stage, streaming: bool) -> Told:
    return completion(on, streaming, model="openai/gpt-4o", api_base=on.endpoint.base_url, api_key=on.endpoint.api_key)


@PLAYS.cells("litellm", "anthropic")
def anthropic(on: Stage, streaming: bool) -> Told:
    return completion(on, streaming, model="anthropic/ajet", api_base=on.root, api_key=on.endpoint.api_key)


@PLAYS.cells("litellm", "responses")
def responses(on: Stage, streaming: bool) -> Told:
    import litellm

    place: Any = {"model": "openai/gpt-4o", "api_base": on.endpoint.base_url, "api_key": on.endpoint.api_key}
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    usage = []
    while True:
        pieces: list[str] | None = None
        answer: Any = litellm.responses(
            input=history, instructions=SYSTEM, tools=[RESPONSES_TOOL], stream=streaming, **place
        )
        if streaming:
            pieces = []
            for event in answer:
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
                if event.type == "response.completed":
                    answer = event.response
        usage.append((answer.usage.input_tokens, answer.usage.output_tokens))
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            text = "".join(block.text for item in answer.output if item.type == "message" for block in item.content)
            return Told(text, usage, pieces)
        history += [item.model_dump(exclude_none=True) for item in answer.output]
        for call in calls:
            output = str(add(**json.loads(call.arguments)))
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


@PLAYS.cells("litellm", "completions")
def completions(on: Stage, streaming: bool) -> Told:
    import litellm

    place: Any = {"api_base": on.endpoint.base_url, "api_key": on.endpoint.api_key}
    talk = RawTalk()
    while True:
        asked = {**talk.asked(), "model": "text-completion-openai/gpt-3.5-turbo-instruct", **place}
        if streaming:
            answer: Any = litellm.text_completion(**asked, stream=True, stream_options={"include_usage": True})
            chunks = list(answer)
        else:
            chunks = [litellm.text_completion(**asked)]
        if ended := talk.heard(chunks):
            return ended


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "thinking"), cases(PLAYS), ids=str)
def test_its_episode_is_proven(cell: Cell, thinking: bool) -> None:
    play_and_prove(cell, PLAYS[cell], thinking=thinking)
