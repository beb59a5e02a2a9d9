"""The dialect itself: a request read, a response told.

Invariant: what a response says of the request is what was asked; usage counts the captured tokens; a reply that was
cut is `incomplete` and says why, one that failed in its stream is `failed`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.chat import error_body
from ajet.gateway.dialects.contract import Asked, Caller, Writer
from ajet.gateway.dialects.response_format import as_response_format, read_text_format
from ajet.gateway.dialects.responses.items import messages_of, read_input
from ajet.gateway.dialects.responses.kept import Item, Kept, KeptResponses, kept_responses
from ajet.gateway.dialects.responses.output import Event, Output, Telling, reasoning_tokens, whole
from ajet.gateway.dialects.responses.tools import read_tool_choice, read_tools
from ajet.gateway.dialects.token_logprobs import Decode
from ajet.gateway.turn import Piece, Refused, Turn, TurnRequest

_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {}, "model": "ajet",
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None, "reasoning": None,
    "safety_identifier": None, "service_tier": None, "store": True, "temperature": None, "text": None,
    "tool_choice": "auto", "tools": [], "top_logprobs": None, "top_p": None, "truncation": "disabled", "user": None,
    "background": False,
}  # fmt: skip
"""Fields of a request that its response repeats, and what it says of those that were left out."""
_ASIDES = (
    "user", "metadata", "max_tool_calls", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options", "client_metadata",
)  # fmt: skip
"""They ask nothing of the reply."""
_NEUTRAL: dict[str, tuple[Any, ...]] = {"presence_penalty": (0,), "frequency_penalty": (0,)}
"""Fields that only a chat engine may honour, with the values that ask for nothing."""
TAKEN = {*_ECHOED, *_ASIDES, *_NEUTRAL, "input", "include", "stream", "stream_options", "stop", "seed", "top_k"}
"""The fields of a request that this dialect knows."""
_INCLUDES = {
    "message.output_text.logprobs", "reasoning.encrypted_content",
    # Of hosted tools and images, which no response here has.
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
}  # fmt: skip
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
_PARAMS = {
    "messages": "input", "logprobs": "include", "response_format": "text.format", "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
}  # fmt: skip
"""A turn's fields as this protocol calls them."""


@dataclass(frozen=True, slots=True)
class _Options:
    echo: Mapping[str, Any]
    telling: Telling
    decode: Decode | None
    kept: KeptResponses
    previous: Kept | None
    own: Sequence[Item]
    store: bool
    id: str = field(default_factory=lambda: "resp_" + secrets.token_hex(24))
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, status: str, output: Sequence[Item], **told: Any) -> dict[str, Any]:
        ended = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if ended else None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            **self.echo,
            "output": list(output),
            "usage": None,
            **told,
        }

    def ended(self, turn: Turn, output: Sequence[Item]) -> dict[str, Any]:
        """The response of a whole reply, kept if that was asked for."""
        cut = turn.finish == "length"
        thought = reasoning_tokens(turn.ids, turn.message, self.decode)
        response = self.response(
            "incomplete" if cut else "completed",
            output,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=_usage(turn, thought),
        )
        self.keep(response)
        return response

    def keep(self, response: dict[str, Any]) -> None:
        if self.store:
            self.kept.keep(self.previous, self.own, response)


class ResponsesDialect:
    """See Dialect. `decode` gives a token's text, for logprobs; None where no tokens are known."""

    path = "/v1/responses"

    def __init__(self, decode: Decode | None) -> None:
        self._decode = decode

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """The request as one turn. Raises Refused."""
        fields.refuse_unknown(body, TAKEN)
        model = fields.model(body)
        kept = kept_responses(caller.kept)
        previous = _previous(body.get("previous_response_id"), kept)
        own = read_input(body.get("input", []), kept)
        earlier = previous.conversation() + previous.response["output"] if previous is not None else []
        images: list[str] = []
        messages = messages_of(earlier, own, kept, images)
        instructions = body.get("instructions")
        if instructions is not None:
            if not isinstance(instructions, str):
                raise fields.wrong("instructions", "a string")
            messages.insert(0, {"role": "system", "content": instructions})
        if not messages:
            raise fields.wrong("input", "a text or a non-empty list of items")
        tools, namespaces = read_tools(body.get("tools"))
        choice, named = read_tool_choice(body, tools)
        includes = _includes(body.get("include"))
        top = fields.integer(body, "top_logprobs", 0, 20)
        logprobs = "message.output_text.logprobs" in includes or bool(top)
        summary, effort = _reasoning(body.get("reasoning"))
        schema, passed = _text(body.get("text"))
        seed = fields.seed(body)
        passed |= {name: value for name, value in (("reasoning_effort", effort), ("seed", seed)) if value is not None}
        passed |= fields.not_neutral(body, _NEUTRAL)
        _check_rest(body)
        request = TurnRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=messages,
            images=tuple(images),
            tools=tools,
            tool_choice=choice,
            named_tool=named,
            parallel_tool_calls=fields.boolean(body, "parallel_tool_calls", True) if tools else True,
            max_tokens=fields.integer(body, "max_output_tokens", 1, 1 << 31),
            temperature=fields.number(body, "temperature", 0, 2),
            top_p=fields.top_p(body),
            top_k=fields.top_k(body),
            stop=fields.stop_strings(body.get("stop")),
            logprobs=logprobs,
            top_logprobs=top or 0,
            json_schema=schema,
            passed=passed,
            asides=fields.given(body, _ASIDES),
            notes={"model": model} if model else {},
        )
        echo = {name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()}
        echo["tools"] = [_echoed(tool) for tool in body.get("tools") or ()]
        echo["text"] = {"format": {"type": "text"}, **(body.get("text") or {})}
        sealing = "reasoning.encrypted_content" in includes
        telling = Telling(self._decode if logprobs else None, top or 0, summary, sealing, namespaces)
        store = fields.boolean(body, "store", True)
        options = _Options(echo, telling, self._decode, kept, previous, own, store)
        return Asked([request], fields.boolean(body, "stream", False), options)

    def reply(self, asked: Asked, turns: Sequence[Turn]) -> dict[str, Any]:
        """A response."""
        options: _Options = asked.options
        turn = turns[0]
        output = Output(options.id, options.telling, options.kept.called)
        tokens = Piece([], turn.ids, turn.logprobs, turn.top)
        for _ in output.feed(whole(turn.message, tokens)):
            pass
        for _ in output.end(_status(turn)):
            pass
        return options.ended(turn, output.items)

    def writer(self, asked: Asked) -> Writer:
        """See Writer."""
        return _EventWriter(asked.options)

    def error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
        """OpenAI's error shape."""
        return error_body(refused, _PARAMS)


class InputTokensDialect(ResponsesDialect):
    """Takes what Responses takes and answers with the prompt's length alone."""

    path = "/v1/responses/input_tokens"

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """See Asked.count. Raises Refused."""
        request = super().read(body, caller).turns[0]
        return Asked([request], False, count=lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens})


class _EventWriter:
    """Named, numbered events."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._output = Output(options.id, options.telling, options.kept.called)
        self._number = 0

    def start(self, choice: int) -> bytes:
        begun = self._options.response("in_progress", ())
        return self._event({"type": "response.created", "response": begun}) + self._event(
            {"type": "response.in_progress", "response": begun}
        )

    def piece(self, choice: int, piece: Piece) -> bytes:
        return b"".join([self._event(event) for event in self._output.feed(piece)])

    def end(self, choice: int, turn: Turn) -> bytes:
        return b"".join([self._event(event) for event in self._output.end(_status(turn))])

    def close(self, turns: Sequence[Turn]) -> bytes:
        response = self._options.ended(turns[0], self._output.items)
        return self._event({"type": f"response.{response['status']}", "response": response})

    def error(self, refused: Refused) -> bytes:
        code = "server_error"
        if refused.status < 500:
            code = "rate_limit_exceeded" if refused.status == 429 else "invalid_prompt"
        told = {"code": code, "message": refused.message}
        self._output.settle()
        response = self._options.response("failed", self._output.items, error=told)
        self._options.keep(response)
        return self._event({"type": "response.failed", "response": response})

    def _event(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._number}
        self._number += 1
        data = json.dumps(numbered, separators=(",", ":"))
        return f"event: {event['type']}\ndata: {data}\n\n".encode()


def _usage(turn: Turn, reasoning_tokens: int) -> dict[str, Any] | None:
    """None where a chat engine's server did not count its tokens."""
    if turn.prompt_tokens is None or turn.completion_tokens is None:
        return None
    return {
        "input_tokens": turn.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": turn.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
    }


def _status(turn: Turn) -> str:
    return "incomplete" if turn.finish == "length" else "completed"


def _previous(name: Any, kept: KeptResponses) -> Kept | None:
    if name is None:
        return None
    found = kept.find(fields.text(name, "previous_response_id"))
    if found is None:
        raise Refused(
            f"Previous response with id '{name}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    if found.response["status"] == "failed":
        raise fields.unsupported("previous_response_id", "that response failed.")
    return found


def _echoed(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"parameters": None, "strict": None, **tool} if tool["type"] == "function" else tool


def _includes(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise fields.wrong("include", "a list")
    for index, name in enumerate(value):
        if not isinstance(name, str) or name not in _INCLUDES:
            raise fields.unsupported(f"include[{index}]", f"no response here has {name!r}.")
    return value


def _reasoning(value: Any) -> tuple[bool, str | None]:
    """(whether a summary is wanted, the effort that is)."""
    if value is None:
        return False, None
    if not isinstance(value, dict):
        raise fields.wrong("reasoning", "an object")
    for name, neutral in (("context", "auto"), ("mode", "standard")):
        if value.get(name) not in (None, neutral):
            raise fields.unsupported(f"reasoning.{name}", "this server's models do not know it.")
    fields.refuse_unknown(value, {"context", "mode", "effort", "summary", "generate_summary"})
    wanted = [value[name] for name in ("summary", "generate_summary") if value.get(name) is not None]
    if any(each not in ("auto", "detailed") for each in wanted):
        raise fields.unsupported("reasoning.summary", "reasoning is told whole: 'auto' or 'detailed'.")
    effort = value.get("effort")
    return bool(wanted), None if effort is None else fields.text(effort, "reasoning.effort")


def _text(value: Any) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
    """(the schema of the reply, fields for chat engines)."""
    if value is None:
        return None, {}
    if not isinstance(value, dict):
        raise fields.wrong("text", "an object")
    fields.refuse_unknown(value, {"format", "verbosity"})
    schema = read_text_format(value.get("format"))
    passed: dict[str, Any] = {}
    if schema is not None:
        passed["response_format"] = as_response_format(value["format"])
    if value.get("verbosity") is not None:
        passed["verbosity"] = fields.text(value["verbosity"], "text.verbosity")
    return schema, passed


def _check_rest(body: Mapping[str, Any]) -> None:
    """Fields that can be honoured only in part."""
    if fields.boolean(body, "background", False):
        raise fields.unsupported("background", "replies are given at once or streamed.")
    if body.get("truncation") not in (None, "disabled"):
        raise fields.unsupported("truncation", "nothing is left out of a conversation: 'disabled' only.")
    fields.integer(body, "max_tool_calls", 1, 1 << 31)
    metadata = body.get("metadata")
    if metadata is not None:
        texts = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
        if not texts:
            raise fields.wrong("metadata", "an object of strings")
    for name in ("user", "prompt_cache_key", "safety_identifier"):
        if not isinstance(body.get(name, ""), (str, type(None))):
            raise fields.wrong(name, "a string")
    if body.get("service_tier") not in (None, *_TIERS):
        raise fields.wrong("service_tier", "one of " + ", ".join(_TIERS))
    options = body.get("stream_options")
    if options is not None:
        if not isinstance(options, dict) or not body.get("stream"):
            raise fields.wrong("stream_options", "an object, and 'stream' to be true")
        fields.refuse_unknown(options, {"include_obfuscation"})
        if fields.boolean(options, "include_obfuscation", False):
            raise fields.unsupported("stream_options.include_obfuscation", "streams are not obfuscated.")
