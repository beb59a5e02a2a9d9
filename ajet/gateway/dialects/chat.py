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
from json.encoder import encode_basestring_ascii
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.chat_messages import read_messages, read_tool_choice, read_tools
from ajet.gateway.dialects.contract import Asked, Caller, Writer
from ajet.gateway.dialects.response_format import read_response_format
from ajet.gateway.dialects.token_logprobs import token_logprobs
from ajet.gateway.turn import Piece, Refused, Turn, TurnRequest, choices

_ASIDES = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
)  # fmt: skip
"""They ask nothing of the reply."""
TAKEN = {
    *_ASIDES,
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "n", "stop", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stream", "stream_options", "seed",
    "response_format", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p",
    "reasoning_effort", "verbosity", "modalities",
}  # fmt: skip
"""The fields of a request that this dialect knows."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "logit_bias": (),
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
"""Fields that only a chat engine may honour, with the values that ask for nothing. The session honours `seed` and
`response_format` itself where it can."""


_TEXT = {"content"}
_ROLE = '{"role":"assistant","content":""}'
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class _Options:
    model: str
    include_usage: bool
    logprobs: bool
    top_logprobs: int
    is_call_named: bool
    id: str = field(default_factory=lambda: "chatcmpl-" + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))


class ChatDialect:
    """See Dialect. `decode` gives a token's text, for logprobs; None where no tokens are known."""

    path = "/v1/chat/completions"

    def __init__(self, decode: Callable[[Sequence[int]], str] | None) -> None:
        self._decode = decode

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """The request as turns. Raises Refused."""
        fields.refuse_unknown(body, TAKEN)
        model = fields.model(body)
        tools = read_tools(body.get("tools"))
        choice, named = read_tool_choice(body, tools)
        limits = [fields.integer(body, name, 1, 1 << 31) for name in ("max_completion_tokens", "max_tokens")]
        logprobs = fields.boolean(body, "logprobs", False)
        top = fields.integer(body, "top_logprobs", 0, 20) or 0
        if top and not logprobs:
            raise fields.wrong("top_logprobs", "'logprobs' to be true with it")
        fields.seed(body)
        stream = fields.boolean(body, "stream", False)
        usage = fields.include_usage(body, stream)
        images: list[str] = []
        request = TurnRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=read_messages(body.get("messages"), images),
            images=tuple(images),
            tools=tools,
            tool_choice=choice,
            named_tool=named,
            parallel_tool_calls=fields.boolean(body, "parallel_tool_calls", True) if tools else True,
            max_tokens=min([limit for limit in limits if limit is not None], default=None),
            temperature=fields.number(body, "temperature", 0, 2),
            top_p=fields.top_p(body),
            top_k=fields.top_k(body),
            stop=fields.stop_strings(body.get("stop")),
            logprobs=logprobs,
            top_logprobs=top,
            counts_tokens=usage or not stream,
            json_schema=read_response_format(body.get("response_format")),
            passed=fields.not_neutral(body, _NEUTRAL),
            asides=fields.given(body, _ASIDES),
            notes={"model": model} if model else {},
        )
        count = fields.integer(body, "n", 1, 128) or 1
        return Asked(
            choices(request, count), stream, _Options(model or "ajet", usage, logprobs, top, named is not None)
        )

    def reply(self, asked: Asked, turns: Sequence[Turn]) -> dict[str, Any]:
        """A chat.completion."""
        options: _Options = asked.options
        choices = [
            {
                "index": index,
                "message": {"refusal": None, **turn.message},
                "logprobs": self._logprobs(options, turn.ids, turn.logprobs, turn.top) if options.logprobs else None,
                "finish_reason": _finish_reason(options, turn),
            }
            for index, turn in enumerate(turns)
        ]
        return {**_head(options, "chat.completion"), "choices": choices, "usage": _usage(turns)}

    def writer(self, asked: Asked) -> Writer:
        """See Writer."""
        return _ChunkWriter(self, asked.options)

    def error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
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
        return {"content": token_logprobs(self._decode, options.top_logprobs, ids, logprobs, top), "refusal": None}


class _ChunkWriter:
    """chat.completion.chunk events."""

    def __init__(self, dialect: ChatDialect, options: _Options) -> None:
        self._dialect, self._options = dialect, options
        self._head = _head(options, "chat.completion.chunk")
        self._before = "data: " + _ENCODE({**self._head, "choices": []})[:-2]
        self._after = '],"usage":null}\n\n' if options.include_usage else "]}\n\n"
        """With usage in the last chunk, the others say null: so has OpenAI's reference."""

    def start(self, choice: int) -> bytes:
        return self._plain(choice, _ROLE)

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
        return self._plain(choice, "{}", f'"{_finish_reason(self._options, turn)}"')

    def close(self, turns: Sequence[Turn]) -> bytes:
        usage = b""
        if self._options.include_usage:
            usage = event({**self._head, "choices": [], "usage": _usage(turns)})
        return usage + b"data: [DONE]\n\n"

    def error(self, refused: Refused) -> bytes:
        return event(error_body(refused))

    def _chunk(self, choice: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None) -> bytes:
        if logprobs is None and delta.keys() == _TEXT:  # almost all there are
            return self._plain(choice, f'{{"content":{encode_basestring_ascii(delta["content"])}}}')
        told = _ENCODE({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None})
        return f"{self._before}{told}{self._after}".encode()

    def _plain(self, choice: int, delta: str, finish: str = "null") -> bytes:
        """An event without logprobs, of JSON texts."""
        told = f'{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}'
        return f"{self._before}{told}{self._after}".encode()


def _finish_reason(options: _Options, turn: Turn) -> str:
    """A call that the client demanded by name ends with `stop`, as at OpenAI and vLLM."""
    return "stop" if options.is_call_named and turn.finish == "tool_calls" else turn.finish


def error_body(refused: Refused, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An error as OpenAI's servers send it. `names` has the fields of a turn that a dialect calls otherwise."""
    param = refused.param
    if names and param and refused.code != "unknown_parameter":
        param = names.get(param, param)
    kind = {401: "authentication_error", 429: "rate_limit_error"}
    return {
        "error": {
            "message": refused.message,
            "type": kind.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error"),
            "param": param,
            "code": refused.code,
        }
    }


def _head(options: _Options, kind: str) -> dict[str, Any]:
    return {"id": options.id, "object": kind, "created": options.created, "model": options.model}


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + _ENCODE(value).encode() + b"\n\n"


def _usage(turns: Sequence[Turn]) -> dict[str, int] | None:
    return usage_of(turns[:1], turns)


def usage_of(prompts: Sequence[Turn], turns: Sequence[Turn]) -> dict[str, int] | None:
    """The tokens of these prompts and of these replies; None where a server did not count them."""
    told = [turn.prompt_tokens for turn in prompts], [turn.completion_tokens for turn in turns]
    if None in told[0] or None in told[1]:
        return None
    prompt, completion = (sum(filter(None, counts)) for counts in told)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
