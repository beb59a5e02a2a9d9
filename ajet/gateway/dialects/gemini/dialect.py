"""generateContent, streamGenerateContent and countTokens: parsing of requests.

Invariant: usage counts the captured tokens. The run decides whether the model thinks; thoughts are shown to clients
that ask for them, and a reply that is sent back without them is recognised nevertheless. The model's name comes from
the path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.contract import Caller, StreamWriter
from ajet.gateway.dialects.gemini.contents import read_contents, read_system
from ajet.gateway.dialects.gemini.objects import convert_schema, read_object
from ajet.gateway.dialects.gemini.reply import GeminiOptions, GeminiWriter, build_answer, error_body
from ajet.gateway.dialects.gemini.tools import read_tool_choice, read_tools
from ajet.gateway.dialects.token_logprobs import Decode
from ajet.gateway.reply import Reply
from ajet.gateway.request import ParsedRequest, Refused

INERT = ("safetySettings", "labels", "serviceTier", "store")
"""Fields that do not affect the reply."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "generationConfig.presencePenalty": (0,),
    "generationConfig.frequencyPenalty": (0,),
}
"""Fields that only a chat engine may honour, with the values that have no effect."""
ONLY_VALUES: dict[str, tuple[Any, ...]] = {
    "generationConfig.responseModalities": ([], ["TEXT"]),
    "generationConfig.responseLogprobs": (False,),
}
"""Field -> the only values, besides null, that a request may give it."""
_SETTINGS = (
    "temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "candidateCount", "seed", "responseMimeType",
    "responseSchema", "responseJsonSchema", "thinkingConfig",
)  # fmt: skip
_CONFIG = "generationConfig"
TAKEN = {
    *INERT, *NEUTRAL, *ONLY_VALUES, *[f"{_CONFIG}.{name}" for name in _SETTINGS],
    "contents", "systemInstruction", "tools", "toolConfig", "model", "alt",
}  # fmt: skip
"""All known fields of a request. `model` and `alt` are in the address."""
_TOP = {name for name in TAKEN if "." not in name} | {_CONFIG}
_MAX_TOKENS = 1 << 31


class GeminiDialect:
    """The generateContent protocol. `decode` gives a token's text, to count thoughts; `None` if no tokens are known."""

    path = "/v1beta/models/{model}:generateContent"

    def __init__(self, decode: Decode | None) -> None:
        self._decode = decode

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse the JSON body of a request. Raises Refused for a field that cannot be honoured."""
        request = self._parse_request(body, caller)
        if request.messages[-1]["role"] == "assistant":
            raise fields.unsupported_value(
                "contents", "the last content must have the role 'user': this server cannot continue the model's."
            )
        return request

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return a GenerateContentResponse."""
        return build_answer(request.options, replies)

    def build_writer(self, request: ParsedRequest) -> StreamWriter:
        """Return the writer of a streamed answer."""
        return GeminiWriter(request.options)

    def format_error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
        """Return an error in Google's form."""
        return error_body(refused)

    def _parse_request(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse a request, also one that only counts tokens. Raises Refused."""
        request_body = read_object(body, "", _TOP)
        config = {
            f"{_CONFIG}.{name}": value for name, value in read_object(request_body.get(_CONFIG, {}), _CONFIG).items()
        }
        fields.refuse_unknown(config, TAKEN)
        model = fields.read_model(request_body)
        images: list[str] = []
        inert = fields.select_set(request_body, INERT)
        tools = read_tools(request_body.get("tools"), inert)
        choice, named_tool = read_tool_choice(request_body.get("toolConfig", {}), tools)
        shows_thoughts, thinking = _read_thinking(config)
        effort = {"reasoning_effort": thinking.pop("level")} if "level" in thinking else {}
        _check_rest(config)
        return ParsedRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=[
                *read_system(request_body.get("systemInstruction")),
                *read_contents(request_body.get("contents"), images),
            ],
            images=tuple(images),
            tools=tools,
            tool_choice=choice,
            named_tool=named_tool,
            max_tokens=fields.read_integer(config, f"{_CONFIG}.maxOutputTokens", 1, _MAX_TOKENS),
            **_read_sampling(config),
            stop=fields.read_stop(config.get(f"{_CONFIG}.stopSequences"), f"{_CONFIG}.stopSequences"),
            json_schema=_read_format(config),
            engine_fields={**_read_engine_fields(config), **effort},
            inert_fields=inert,
            notes={**({"model": model} if model else {}), **thinking},
            replies_per_prompt=fields.read_integer(config, f"{_CONFIG}.candidateCount", 1, 128) or 1,
            options=GeminiOptions(model or "ajet", shows_thoughts, self._decode),
        )


class GeminiStreamDialect(GeminiDialect):
    """Takes the requests of generateContent and answers with server-sent events."""

    path = "/v1beta/models/{model}:streamGenerateContent"

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse a request for server-sent events. Raises Refused for a field that cannot be honoured, or without
        `alt=sse`.
        """
        if body.get("alt") != "sse":
            raise fields.unsupported_value("alt", "this server streams events only: add ?alt=sse to the address.")
        request = super().parse(body, caller)
        request.is_streamed = True
        return request


class GeminiCountDialect(GeminiDialect):
    """Takes the requests of generateContent and answers with the number of prompt tokens only."""

    path = "/v1beta/models/{model}:countTokens"

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse a request whose prompt tokens are to be counted. Raises Refused for a field that cannot be honoured."""
        request_body = read_object(body, "")
        if "generateContentRequest" in request_body:  # the nested form of Google's API; the model is in the address
            request_body = {
                **read_object(request_body["generateContentRequest"], "generateContentRequest"),
                "model": request_body["model"],
            }
        request = self._parse_request(request_body, caller)
        request.format_count = lambda tokens: {"totalTokens": tokens}
        return request


def _read_sampling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields by their names in `ParsedRequest`. Raises Refused."""
    top_p = fields.read_number(config, f"{_CONFIG}.topP", 0, 1)
    if top_p == 0:
        raise fields.invalid_value(f"{_CONFIG}.topP", "a number above 0 and at most 1")
    top_k = fields.read_number(config, f"{_CONFIG}.topK", 0, 1 << 31)  # clients write 40.0
    return {
        "temperature": fields.read_number(config, f"{_CONFIG}.temperature", 0, 2),
        "top_p": top_p,
        "top_k": None if top_k is None else int(top_k) or -1,  # -1: no limit, like 0 here
    }


def _read_engine_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for chat engines, by their names in Chat Completions."""
    names = {"presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty"}
    effective = fields.select_effective(config, NEUTRAL)
    engine_fields = {
        engine_name: effective[f"{_CONFIG}.{name}"]
        for name, engine_name in names.items()
        if f"{_CONFIG}.{name}" in effective
    }
    seed = fields.read_integer(config, f"{_CONFIG}.seed", -(1 << 63), (1 << 63) - 1)
    return engine_fields if seed is None else {**engine_fields, "seed": seed}


def _read_format(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of the reply: {} admits any JSON object, `None` any text."""
    kind = config.get(f"{_CONFIG}.responseMimeType", "text/plain")
    if kind not in ("text/plain", "application/json"):
        raise fields.unsupported_value(
            f"{_CONFIG}.responseMimeType", "this server supports 'text/plain' and 'application/json' only."
        )
    schema, location = config.get(f"{_CONFIG}.responseJsonSchema"), f"{_CONFIG}.responseJsonSchema"
    if schema is None and (schema := config.get(f"{_CONFIG}.responseSchema")) is not None:
        location = f"{_CONFIG}.responseSchema"
        schema = convert_schema(schema, location)
    if schema is None:
        return None if kind == "text/plain" else {}
    if kind == "text/plain":
        raise fields.invalid_value(location, "'responseMimeType': 'application/json' in the same request")
    return fields.check_schema(schema, location)


def _read_thinking(config: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return (True if thoughts are shown, the budget and level of thinking)."""
    location = f"{_CONFIG}.thinkingConfig"
    thinking = read_object(config.get(location, {}), location, ("includeThoughts", "thinkingBudget", "thinkingLevel"))
    thinking_fields: dict[str, Any] = {}
    if "thinkingBudget" in thinking:
        if type(thinking["thinkingBudget"]) is not int:
            raise fields.invalid_value(f"{location}.thinkingBudget", "an integer")
        thinking_fields["thinking_budget"] = thinking["thinkingBudget"]
    if "thinkingLevel" in thinking:
        thinking_fields["level"] = fields.check_text(thinking["thinkingLevel"], f"{location}.thinkingLevel").lower()
    return fields.read_boolean(thinking, "includeThoughts", False, location), thinking_fields


def _check_rest(config: Mapping[str, Any]) -> None:
    """Raise Refused for unsupported values of partly supported fields."""
    for name, value in fields.select_effective(config, ONLY_VALUES).items():
        raise fields.unsupported_value(name, f"this server has no {value!r}; leave the field out.")
