"""OpenAI Chat Completions, streaming and not.

Invariant: usage counts the captured tokens, finish reasons are honest, and `logprobs.content` has one entry a captured
token. Fields that only a chat engine can honour are passed on to it and refused by name where tokens are captured.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.chat_messages import read_messages, read_tool_choice, read_tools
from ajet.gateway.dialects.contract import Asked, Caller, Writer
from ajet.gateway.turn import Piece, Refused, Turn, TurnRequest

_HARMLESS = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
}  # fmt: skip
"""They ask nothing of the reply."""
_READ = {
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "n", "stop", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stream", "stream_options", "seed",
    "response_format", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p",
    "reasoning_effort", "verbosity", "modalities",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "reasoning_effort": (),
    "verbosity": (),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "seed": (),
}
"""Fields that only a chat engine may honour, with the values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class _Options:
    model: str
    include_usage: bool
    logprobs: bool
    top_logprobs: int
    id: str = field(default_factory=lambda: "chatcmpl-" + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


class ChatDialect:
    """See Dialect. `decode` gives a token's text, for logprobs; None where no tokens are known."""

    path = "/v1/chat/completions"

    def __init__(self, decode: Callable[[Sequence[int]], str] | None) -> None:
        self._decode = decode

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """The request as turns. Raises Refused."""
        for name in body:
            if name not in _READ and name not in _HARMLESS and body[name] is not None:
                raise Refused(
                    f"Unrecognized request argument supplied: {name}", param=name, code="unsupported_parameter"
                )
        model = body.get("model")
        if model is not None and not isinstance(model, str):
            raise fields.wrong("model", "a string")
        tools = read_tools(body.get("tools"))
        choice, named = read_tool_choice(body, tools)
        limits = [fields.integer(body, name, 1, 1 << 31) for name in ("max_completion_tokens", "max_tokens")]
        logprobs = fields.boolean(body, "logprobs", False)
        top = fields.integer(body, "top_logprobs", 0, 20) or 0
        if top and not logprobs:
            raise fields.wrong("top_logprobs", "'logprobs' to be true with it")
        passed = {
            name: body[name]
            for name, neutral in _NEUTRAL.items()
            if body.get(name) is not None and body[name] not in neutral
        }
        fields.integer(body, "seed", -(1 << 63), (1 << 63) - 1)
        request = TurnRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=read_messages(body.get("messages")),
            tools=tools,
            tool_choice=choice,
            named_tool=named,
            parallel_tool_calls=fields.boolean(body, "parallel_tool_calls", True) if tools else True,
            max_tokens=min([limit for limit in limits if limit is not None], default=None),
            temperature=fields.number(body, "temperature", 0, 2),
            top_p=_top_p(body),
            top_k=_top_k(body),
            stop=_stop(body.get("stop")),
            logprobs=logprobs,
            top_logprobs=top,
            passed=passed,
            notes={"model": model} if model else {},
        )
        stream = fields.boolean(body, "stream", False)
        options = body.get("stream_options")
        if options is not None and not (isinstance(options, dict) and stream):
            raise fields.wrong("stream_options", "an object, and 'stream' to be true")
        usage = fields.boolean(options or {}, "include_usage", False)
        count = fields.integer(body, "n", 1, 128) or 1
        return Asked([request] * count, stream, _Options(model or "ajet", usage, logprobs, top))

    def reply(self, asked: Asked, turns: Sequence[Turn]) -> dict[str, Any]:
        """A chat.completion."""
        options: _Options = asked.options
        choices = [
            {
                "index": index,
                "message": {"refusal": None, **turn.message},
                "logprobs": self._logprobs(options, turn.ids, turn.logprobs, turn.top) if options.logprobs else None,
                "finish_reason": turn.finish,
            }
            for index, turn in enumerate(turns)
        ]
        return {**_head(options, "chat.completion"), "choices": choices, "usage": _usage(turns)}

    def writer(self, asked: Asked) -> Writer:
        """See Writer."""
        return _ChunkWriter(self, asked.options)

    def error(self, refused: Refused) -> dict[str, Any]:
        """OpenAI's error shape."""
        return error_body(refused)

    def _logprobs(
        self,
        options: _Options,
        ids: Sequence[int],
        logprobs: Sequence[float],
        top: Sequence[list[tuple[int, float]]],
    ) -> dict[str, Any] | None:
        if self._decode is None or not len(ids):
            return None
        content = []
        for at, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            others = top[at][: options.top_logprobs] if at < len(top) else []
            content.append({**self._token(token, logprob), "top_logprobs": [self._token(*other) for other in others]})
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        assert self._decode is not None
        spelled = self._decode([token])
        whole = "\ufffd" not in spelled
        return {"token": spelled, "logprob": float(logprob), "bytes": list(spelled.encode()) if whole else None}


class _ChunkWriter:
    """chat.completion.chunk events."""

    def __init__(self, dialect: ChatDialect, options: _Options) -> None:
        self._dialect, self._options = dialect, options
        self._head = _head(options, "chat.completion.chunk")

    def start(self, choice: int) -> bytes:
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def piece(self, choice: int, piece: Piece) -> bytes:
        deltas = piece.deltas or ([{"content": ""}] if self._options.logprobs and len(piece.ids) else [])
        events: list[bytes] = []
        for at, delta in enumerate(deltas):
            logprobs = None
            if self._options.logprobs and at == 0:
                logprobs = self._dialect._logprobs(self._options, piece.ids, piece.logprobs, piece.top)
            events.append(self._chunk(choice, delta, logprobs=logprobs))
        return b"".join(events)

    def end(self, choice: int, turn: Turn) -> bytes:
        return self._chunk(choice, {}, finish=turn.finish)

    def close(self, turns: Sequence[Turn]) -> bytes:
        usage = b""
        if self._options.include_usage:
            usage = _event({**self._head, "choices": [], "usage": _usage(turns)})
        return usage + b"data: [DONE]\n\n"

    def error(self, refused: Refused) -> bytes:
        return _event(error_body(refused))

    def _chunk(
        self, choice: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        told = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event({**self._head, "choices": [told]})


def error_body(refused: Refused) -> dict[str, Any]:
    """An error as OpenAI's servers send it."""
    kind = {401: "authentication_error", 503: "server_error", 500: "server_error"}
    return {
        "error": {
            "message": refused.message,
            "type": kind.get(refused.status, "invalid_request_error"),
            "param": refused.param,
            "code": refused.code,
        }
    }


def _head(options: _Options, kind: str) -> dict[str, Any]:
    return {"id": options.id, "object": kind, "created": options.created, "model": options.model}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _usage(turns: Sequence[Turn]) -> dict[str, int]:
    prompt = turns[0].prompt_tokens
    completion = sum(turn.completion_tokens for turn in turns)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _top_p(body: Mapping[str, Any]) -> float | None:
    value = fields.number(body, "top_p", 0, 1)
    if value == 0:
        raise fields.wrong("top_p", "a number above 0 and up to 1")
    return value


def _top_k(body: Mapping[str, Any]) -> int | None:
    value = fields.integer(body, "top_k", -1, 1 << 31)
    return -1 if value == 0 else value


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or len(value) > 16:
        raise fields.wrong("stop", "a string or a list of at most 16 strings")
    return tuple([fields.text(stop, "stop") for stop in value])
