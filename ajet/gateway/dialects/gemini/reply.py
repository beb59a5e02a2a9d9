"""Answers of Gemini: candidates, usage, errors, and the events of a stream.

Invariant: streamed and unstreamed answers consist of the same parts. Function calls come complete at the end.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from ajet.gateway.dialects.chat import count_usage, encode_event
from ajet.gateway.dialects.responses.output import reasoning_tokens
from ajet.gateway.dialects.token_logprobs import Decode
from ajet.gateway.reply import Reply, ReplyChunk
from ajet.gateway.request import Refused

METHODS = ("generateContent", "streamGenerateContent", "countTokens")
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_PARAMS = {
    "messages": "contents",
    "tool_choice": "toolConfig",
    "response_format": "generationConfig.responseSchema",
    "presence_penalty": "generationConfig.presencePenalty",
    "frequency_penalty": "generationConfig.frequencyPenalty",
}
"""Field name in Chat Completions -> its name in this protocol."""


@dataclass(slots=True)
class GeminiOptions:
    """Settings of a request that shape its answer."""

    model: str
    shows_thoughts: bool
    decode: Decode | None
    id: str = field(default_factory=lambda: secrets.token_hex(12))

    def build_answer(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        """Return an answer, or an event of a stream, without usage."""
        return {"candidates": candidates, "modelVersion": self.model, "responseId": self.id}


def build_text(kind: str, text: str) -> dict[str, Any]:
    """Return a part of text. `kind`: `content`, or `reasoning_content` for a thought."""
    return {"text": text, "thought": True} if kind == "reasoning_content" else {"text": text}


def build_candidate(index: int, parts: list[dict[str, Any]], reply: Reply | None = None) -> dict[str, Any]:
    """Return a candidate of an answer or of a stream's event.

    Args:
        index: Number of the candidate.
        parts: Its text.
        reply: The complete reply: adds its function calls and its finish reason. None: more events follow.
    """
    end: dict[str, Any] = {}
    if reply is not None:
        end = {"finishReason": "MAX_TOKENS" if reply.finish == "length" else "STOP"}
        try:
            parts = parts + [_build_call(call) for call in (reply.message or {}).get("tool_calls") or ()]
        except ValueError as error:
            end = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": f"Malformed function call: {error}"}
        parts = parts or [{"text": ""}]
    return {"content": {"parts": parts, "role": "model"}, **end, "index": index}


def _build_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a part with a function call. Raises ValueError if the arguments are no JSON object."""
    function = call["function"]
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {function['name']} are no JSON object")
    return {"functionCall": {"id": call["id"], "name": function["name"], "args": arguments}}


def build_usage(replies: Sequence[Reply], decode: Decode | None) -> dict[str, Any]:
    """Return {"usageMetadata": counts}, or {} if the server of a chat engine did not count its tokens."""
    usage = count_usage(replies[:1], replies)
    if usage is None:
        return {}
    thoughts = sum(reasoning_tokens(reply.ids, reply.message or {}, decode) for reply in replies)
    counts = {
        "promptTokenCount": usage["prompt_tokens"],
        "candidatesTokenCount": usage["completion_tokens"] - thoughts,
        **({"thoughtsTokenCount": thoughts} if thoughts else {}),
        "totalTokenCount": usage["total_tokens"],
    }
    return {"usageMetadata": counts}


def build_answer(options: GeminiOptions, replies: Sequence[Reply]) -> dict[str, Any]:
    """Return a complete answer."""
    kinds = ("reasoning_content", "content") if options.shows_thoughts else ("content",)
    candidates = []
    for index, reply in enumerate(replies):
        message = reply.message or {}
        parts = [build_text(kind, message[kind]) for kind in kinds if message.get(kind)]
        candidates.append(build_candidate(index, parts, reply))
    return {**options.build_answer(candidates), **build_usage(replies, options.decode)}


class GeminiWriter:
    """Writes the events of a stream. The last event has the ends of all candidates, and the usage."""

    def __init__(self, options: GeminiOptions) -> None:
        self._options = options

    def begin_reply(self, choice: int) -> bytes:
        return b""

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes:
        """Return an event with the chunk's text, or b"" without text. Thoughts are left out unless the client requested
        them.
        """
        kinds = ("reasoning_content", "content") if self._options.shows_thoughts else ("content",)
        texts = [(kind, delta[kind]) for delta in chunk.deltas for kind in kinds if delta.get(kind)]
        groups = groupby(texts, key=itemgetter(0))
        parts = [build_text(kind, "".join(text for _, text in group)) for kind, group in groups]
        return encode_event(self._options.build_answer([build_candidate(choice, parts)])) if parts else b""

    def end_reply(self, choice: int, reply: Reply) -> bytes:
        """Return no event: `close` sends the ends of all candidates together."""
        return b""

    def close(self, replies: Sequence[Reply]) -> bytes:
        """Return the last event: function calls and finish reasons of all candidates, and the usage."""
        ends = [build_candidate(index, [], reply) for index, reply in enumerate(replies)]
        return encode_event({**self._options.build_answer(ends), **build_usage(replies, self._options.decode)})

    def fail(self, refused: Refused) -> bytes:
        return encode_event(error_body(refused))


def error_body(refused: Refused) -> dict[str, Any]:
    """Return an error in the form of Google's servers."""
    default = "INTERNAL" if refused.status >= 500 else "INVALID_ARGUMENT"
    error: dict[str, Any] = {
        "code": refused.status,
        "message": refused.message,
        "status": _STATUSES.get(refused.status, default),
    }
    details = {"reason": refused.code, "field": _PARAMS.get(refused.param or "", refused.param)}
    if set_details := {name: value for name, value in details.items() if value is not None}:
        error["details"] = [set_details]
    return {"error": error}


def model_info(name: str, max_input_tokens: int, max_tokens: int) -> dict[str, Any]:
    """Return the description of a model in Google's form. The limits are in tokens."""
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": max_input_tokens,
        "outputTokenLimit": max_tokens,
        "supportedGenerationMethods": list(METHODS),
    }
