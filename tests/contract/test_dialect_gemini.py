"""Gemini's dialect: prompts equal those of Chat Completions; keys, tools and schemas of Google's kind."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.gateways import ADD, ASK, EpisodeSession, post, start_gateway

CONTENTS = [{"role": "user", "parts": [{"text": "What is 1 + 2?"}]}]
SYSTEM = {"parts": [{"text": "Be brief."}]}


def generate(session: EpisodeSession, body: dict[str, Any], query: str = "", **headers: str) -> httpx.Response:
    endpoint = session.endpoint()
    sent = headers or {"x-goog-api-key": endpoint.api_key}
    query = query.replace("KEY", endpoint.api_key)
    root = endpoint.base_url.removesuffix("/v1")
    return httpx.post(f"{root}/v1beta/models/ajet:generateContent{query}", headers=sent, json=body, timeout=60)


def declare(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"functionDeclarations": [{"name": "add", "parameters": parameters}]}]


def test_prompt_is_that_of_chat_completions() -> None:
    call = {"name": "add", "args": {"a": 1}}
    contents = [
        *CONTENTS,
        {"role": "model", "parts": [{"text": "I add."}, {"functionCall": call}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"output": "3"}}}]},
    ]
    tool_call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": "I add.", "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    with start_gateway(lambda _: "3") as on:
        session = on.open()
        tools = declare({"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}})
        assert generate(session, {"systemInstruction": SYSTEM, "contents": contents, "tools": tools}).is_success
        assert post(session.endpoint(), {"messages": messages, "tools": [ADD]}).is_success
        gemini, chat = session.close().calls
        assert chat.prefix == len(gemini.suffix_ids) and not len(chat.suffix_ids)


def test_schema_of_google_becomes_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "property_ordering": ["sizes"],
        "properties": {
            "sizes": {"type": "ARRAY", "minItems": "1", "items": {"type": "NUMBER", "nullable": True}},
            "any_of": {"anyOf": [{"type": "STRING", "example": "a"}, {"type": "BOOLEAN"}]},
        },
    }
    with start_gateway(["3"]) as on:
        session = on.open()
        assert generate(session, {"contents": CONTENTS, "tools": declare(schema)}).is_success
        assert session.close().tools[0][0]["function"]["parameters"] == {
            "type": "object",
            "properties": {
                "sizes": {"type": "array", "minItems": 1, "items": {"type": ["number", "null"]}},
                "any_of": {"anyOf": [{"type": "string", "examples": ["a"]}, {"type": "boolean"}]},
            },
        }


def test_key_may_stand_in_the_address() -> None:
    with start_gateway(["3"]) as on:
        session = on.open()
        assert generate(session, {"contents": CONTENTS}, "?key=KEY", accept="*/*").is_success
        wrong = generate(session, {"contents": CONTENTS}, "?key=none", accept="*/*")
        assert wrong.status_code == 401 and wrong.json()["error"]["status"] == "UNAUTHENTICATED"


def test_named_tools_of_google_are_left_out() -> None:
    tools = [{"googleSearch": {}}, {**declare({"type": "OBJECT"})[0], "urlContext": {}}]
    with start_gateway(["3"], leave_out_tools=["googleSearch", "urlContext"]) as on:
        session = on.open()
        assert generate(session, {"contents": CONTENTS, "tools": tools}).is_success
        capture = session.close()
        assert [tool["function"]["name"] for tool in capture.tools[0]] == ["add"]
        assert capture.calls[0].extra["left_out"] == ["googleSearch", "urlContext"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text"),
        ({"contents": [{"parts": [{"text": "a", "functionCall": {}}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"parts": [{"functionCall": {"name": "add"}}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"parts": [{"functionResponse": {"name": "a", "response": 3}}]}]}, "functionResponse.response"),
        ({"contents": CONTENTS, "tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"contents": CONTENTS, "tools": declare({"type": "ARRAY"})}, "functionDeclarations[0].parameters.type"),
        ({"contents": CONTENTS, "tools": declare({"minItems": "x"})}, "functionDeclarations[0].parameters.minItems"),
        ({"contents": CONTENTS, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "CallingConfig.mode"),
        ({"contents": CONTENTS, "systemInstruction": {"parts": "a"}}, "systemInstruction.parts"),
        ({"contents": CONTENTS, "generationConfig": []}, "generationConfig"),
        ({"contents": CONTENTS, "generationConfig": {"topP": 0}}, "generationConfig.topP"),
        ({"contents": CONTENTS, "generationConfig": {"responseMimeType": "text/x.enum"}}, "responseMimeType"),
        ({"contents": CONTENTS, "generationConfig": {"responseModalities": ["AUDIO"]}}, "responseModalities"),
        ({"contents": CONTENTS, "generationConfig": {"thinkingConfig": {"thinkingBudget": 1.5}}}, "thinkingBudget"),
    ],
    ids=str,
)
def test_refusal_names_the_field(body: dict[str, Any], field: str) -> None:
    with start_gateway(["3"]) as on:
        refused = generate(on.open(), body)
        assert refused.status_code == 400
        assert refused.json()["error"]["details"][0]["field"].endswith(field)
