"""The client languages side by side: rich requests of each, and what any answer in it must look like.

The answers are held to the types of the clients' own libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from ajet.schema.endpoint import Endpoint

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}


@dataclass(frozen=True, repr=False)
class Language:
    """One dialect as its clients know it."""

    path: str
    plain: dict[str, Any]
    """The least that asks for a reply to "What is 1 + 2?"."""
    rich: tuple[dict[str, Any], ...]
    """Valid requests that use much of the language."""
    types: Callable[[], tuple[Any, Any]]
    """The types of a whole reply and of one event of a stream."""
    anthropic: bool = False
    google: bool = False

    def __repr__(self) -> str:
        return self.path

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.path)  # where hypothesis tells a failing example

    def headers(self, key: str) -> dict[str, str]:
        """What its clients send."""
        told = {"content-type": "application/json"}
        if self.google:
            return {**told, "x-goog-api-key": key}
        if self.anthropic:
            return {**told, "x-api-key": key, "anthropic-version": "2023-06-01"}
        return {**told, "authorization": f"Bearer {key}"}

    def url(self, endpoint: Endpoint) -> str:
        """Where its requests go."""
        return endpoint.base_url + self.path

    def check_error(self, body: Any) -> dict[str, Any]:
        """The error of a refusal, once its shape is found right."""
        if self.anthropic:
            assert set(body) - {"request_id"} == {"type", "error"} and body["type"] == "error"  # a stream's has none
            assert body.get("request_id", "req_").startswith("req_")
            assert {"type", "message"} <= set(body["error"]) <= {"type", "message", "details"}
        elif self.google:
            assert set(body) == {"error"} and {"code", "message", "status"} <= set(body["error"])
            assert set(body["error"]) <= {"code", "message", "status", "details"} and body["error"]["message"]
            return body["error"]
        else:
            assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"] and body["error"]["type"]
        return body["error"]

    def check_reply(self, body: Any) -> Any:
        """A whole reply as its client's type."""
        return _adapter(self.types()[0]).validate_python(body)

    def check_events(self, text: str) -> list[Any]:
        """The events of a whole stream as their client's types; the last is an ending of the language."""
        assert text.endswith("\n\n")
        events: list[Any] = []
        blocks = text.removesuffix("\n\n").split("\n\n")
        for at, block in enumerate(blocks):
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            if lines["data"] == "[DONE]":
                assert at == len(blocks) - 1 and self.path in ("/chat/completions", "/completions")
                return events
            data = json.loads(lines["data"])
            if "event" in lines:
                assert lines["event"] == data["type"]
            if data.get("type") == "ping":
                continue
            if set(data) == {"error"} or (self.anthropic and data["type"] == "error"):
                self.check_error(data)
                assert at == len(blocks) - 1
                return events
            if self.path == "/completions":  # chunks have the type of whole replies, which end for some reason
                told = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in data["choices"]]
                data = {**data, "choices": told}
            events.append(_adapter(self.types()[1]).validate_python(data))
        endings = {"message_stop", "response.completed", "response.incomplete", "response.failed"}
        assert events[-1].type in endings
        return events


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _chat_types() -> tuple[Any, Any]:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    return ChatCompletion, ChatCompletionChunk


def _completion_types() -> tuple[Any, Any]:
    from openai.types import Completion

    return Completion, Completion


def _response_types() -> tuple[Any, Any]:
    from openai.types.responses import Response, ResponseStreamEvent

    return Response, ResponseStreamEvent


def _input_tokens_types() -> tuple[Any, Any]:
    from openai.types.responses import InputTokenCountResponse

    return InputTokenCountResponse, InputTokenCountResponse


def _message_types() -> tuple[Any, Any]:
    from anthropic.types import Message, RawMessageStreamEvent

    return Message, RawMessageStreamEvent


def _gemini_types() -> tuple[Any, Any]:
    from google.genai.types import GenerateContentResponse

    return GenerateContentResponse, GenerateContentResponse


def _count_types() -> tuple[Any, Any]:
    from anthropic.types import MessageTokensCount

    return MessageTokensCount, MessageTokensCount


_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
_USED = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"}], "is_error": False}
_ASK = {"role": "user", "content": "What is 1 + 2?"}

CHAT = Language(
    "/chat/completions",
    {"model": "m", "messages": [_ASK]},
    (
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                _ASK,
                {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "hm"},
                {"role": "tool", "tool_call_id": "c1", "content": "3", "name": "add"},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            "parallel_tool_calls": False,
            "max_completion_tokens": 9,
        },
        {
            "model": "m",
            "messages": [_ASK],
            "n": 2,
            "stop": ["\n", "is"],
            "logprobs": True,
            "top_logprobs": 2,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 3,
            "stream_options": {"include_usage": True},
        },
        {
            "messages": [_ASK, {"role": "assistant", "content": "3"}, _ASK],
            "response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}},
            "max_tokens": 20,
            "metadata": {"a": "b"},
        },
    ),
    _chat_types,
)
COMPLETIONS = Language(
    "/completions",
    {"model": "m", "prompt": "1 + 2 ="},
    (
        {"model": "m", "prompt": ["1 + 2 =", "3 + 4 ="], "n": 2, "max_tokens": 5, "echo": True, "stop": "\n"},
        {"model": "m", "prompt": [40, 41, 42], "logprobs": 2, "temperature": 0.5, "top_p": 0.9, "seed": 1},
        {"prompt": [[40], [41, 42]], "best_of": 1, "suffix": "", "logit_bias": {}, "user": "u"},
    ),
    _completion_types,
)
_INPUTS: tuple[dict[str, Any], ...] = (
    {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "What is 1 + 2?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ],
        "tools": [{"type": "function", **FUNCTION, "strict": False}],
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "max_output_tokens": 20,
        "reasoning": {"summary": "auto"},
    },
    {
        "model": "m",
        "input": [{"type": "message", "role": "developer", "content": "Be brief."}, _ASK],
        "text": {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA, "strict": True}},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "temperature": 0.5,
        "store": False,
        "metadata": {"a": "b"},
        "truncation": "disabled",
    },
    {
        "input": [_ASK],
        "tool_choice": "none",
        "tools": [],
        "top_p": 0.5,
        "previous_response_id": None,
        "user": "u",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "max_tool_calls": 3,
    },
)
RESPONSES = Language("/responses", {"model": "m", "input": "What is 1 + 2?"}, _INPUTS, _response_types)
INPUT_TOKENS = Language("/responses/input_tokens", {"model": "m", "input": "Hi"}, _INPUTS, _input_tokens_types)
_MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "model": "m",
        "max_tokens": 20,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            _ASK,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, _USED]},
            {"role": "user", "content": [_RESULT, {"type": "text", "text": "Go on."}]},
        ],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS, "input_examples": [{"a": 1}]}],
        "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    },
    {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is 1 + 2?"}]}],
        "stop_sequences": ["\n", "is"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
        "metadata": {"user_id": "u"},
    },
    {
        "max_tokens": 30,
        "messages": [_ASK, {"role": "assistant", "content": "3"}, {"role": "system", "content": "S"}, _ASK],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "thinking": {"type": "adaptive"},
    },
)
MESSAGES = Language(
    "/messages", {"model": "m", "max_tokens": 50, "messages": [_ASK]}, _MESSAGES, _message_types, anthropic=True
)
COUNT = Language("/messages/count_tokens", {"model": "m", "messages": [_ASK]}, _MESSAGES, _count_types, anthropic=True)
_CONTENT = {"role": "user", "parts": [{"text": "What is 1 + 2?"}]}
_DECLARED = {"name": "add", "description": "Adds.", "parameters": {"type": "OBJECT", "nullable": True,
             "properties": {"a": {"type": "INTEGER"}, "b": {"type": "ARRAY", "items": {"type": "STRING"},
             "minItems": "1", "anyOf": [{"type": "STRING", "example": "x"}]}}, "required": ["a"]}}  # fmt: skip
GEMINI = Language(
    "/models/ajet:generateContent",
    {"contents": [_CONTENT]},
    (
        {
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "contents": [
                _CONTENT,
                {
                    "role": "model",
                    "parts": [
                        {"text": "hm", "thought": True, "thoughtSignature": "c2ln"},
                        {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}},
                        {"functionCall": {"name": "add", "args": {"a": 2}}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"id": "c1", "name": "add", "response": {"output": "3"}}},
                        {"functionResponse": {"name": "add", "response": {"error": {"a": 1}}}},
                        {"text": "Go on."},
                    ],
                },
            ],
            "tools": [{"functionDeclarations": [_DECLARED, {"name": "look", "parametersJsonSchema": PARAMETERS}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["add", "look"]}},
            "safetySettings": [{"category": "c", "threshold": "t"}],
        },
        {
            "contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "aa_-"}}, {"text": "What?"}]}],
            "tool_config": {"function_calling_config": {"mode": "NONE"}},
        },
        {
            "contents": [_CONTENT],
            "generationConfig": {
                "temperature": 0.5,
                "topP": 0.9,
                "topK": 5.0,
                "maxOutputTokens": 9,
                "stopSequences": ["\n", "is"],
                "seed": 3,
                "responseMimeType": "application/json",
                "responseSchema": {"type": "OBJECT", "properties": {"total": {"type": "INTEGER"}}},
                "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 100, "thinkingLevel": "LOW"},
                "presencePenalty": 0,
                "responseModalities": ["TEXT"],
            },
        },
    ),
    _gemini_types,
    google=True,
)
"""Its requests for streams have another address, so it is not among `LANGUAGES`."""
REPLYING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
LANGUAGES = (*REPLYING, INPUT_TOKENS, COUNT)


def named(language: Language) -> str:
    """For test ids."""
    return language.path.strip("/").replace("/", "-")
