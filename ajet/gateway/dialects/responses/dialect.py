"""Responses and its input_tokens: parsing of requests, formatting of answers.

Invariant: a response repeats the request's fields as sent; usage counts the captured tokens; a cut reply is
`incomplete` with the reason, a reply that failed in its stream is `failed`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.chat import error_body
from ajet.gateway.dialects.contract import Caller, StreamWriter
from ajet.gateway.dialects.fields import invalid_value, unsupported_value
from ajet.gateway.dialects.responses.items import messages_of, read_input
from ajet.gateway.dialects.responses.output import Event, Output, Telling, build_complete_chunk, reasoning_tokens
from ajet.gateway.dialects.responses.stored import (
    Item,
    StoredResponse,
    StoredResponses,
    find_stored_responses,
    item_list,
)
from ajet.gateway.dialects.responses.tools import read_tool_choice, read_tools
from ajet.gateway.dialects.token_logprobs import Decode
from ajet.gateway.reply import Reply, ReplyChunk
from ajet.gateway.request import ParsedRequest, Refused

_ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {}, "model": "ajet",
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None, "reasoning": None,
    "safety_identifier": None, "service_tier": None, "store": True, "temperature": None, "text": None,
    "tool_choice": "auto", "tools": [], "top_logprobs": None, "top_p": None, "truncation": "disabled", "user": None,
    "background": False,
}  # fmt: skip
"""Request fields repeated by the response, with their default values."""
INERT = (
    "user", "metadata", "max_tool_calls", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options", "client_metadata",
)  # fmt: skip
"""Fields that do not affect the reply."""
NEUTRAL: dict[str, tuple[Any, ...]] = {"presence_penalty": (0,), "frequency_penalty": (0,)}
"""Fields that only a chat engine may honour, with the values that have no effect."""
ONLY_VALUES: dict[str, tuple[Any, ...]] = {"background": (False,), "truncation": ("disabled",)}
"""Field -> the only values, besides null, that a request may give it."""
TAKEN = {*_ECHOED, *INERT, *NEUTRAL, "input", "include", "stream", "stream_options", "stop", "seed", "top_k"}
"""Fields that a request may have; any other field is refused."""
_INCLUDES = {
    "message.output_text.logprobs", "reasoning.encrypted_content",
    # Of hosted tools and images, which do not exist here.
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
}  # fmt: skip
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
_PARAMS = {
    "messages": "input", "logprobs": "include", "response_format": "text.format", "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
}  # fmt: skip
"""Field name in Chat Completions -> its name in this protocol."""


@dataclass(slots=True)
class _Options:
    echo: Mapping[str, Any]
    telling: Telling
    decode: Decode | None
    stored: StoredResponses
    previous: StoredResponse | None
    own: Sequence[Item]
    store: bool
    id: str = field(default_factory=lambda: "resp_" + secrets.token_hex(24))
    created: int = field(default_factory=lambda: int(time.time()))

    def build_response(self, status: str, output: Sequence[Item], **values: Any) -> dict[str, Any]:
        """Return a response object. It repeats the request's fields, as the protocol requires, and `values` replace its
        own.
        """
        is_finished = status in ("completed", "incomplete")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if is_finished else None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            **self.echo,
            "output": list(output),
            "usage": None,
            **values,
        }

    def complete_response(self, reply: Reply, output: Sequence[Item]) -> dict[str, Any]:
        """Return the response of a complete reply, and store it if requested."""
        is_cut = reply.finish == "length"
        thought = reasoning_tokens(reply.ids, reply.message or {}, self.decode)
        response = self.build_response(
            "incomplete" if is_cut else "completed",
            output,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            usage=_build_usage(reply, thought),
        )
        self.store_response(response)
        return response

    def store_response(self, response: dict[str, Any]) -> None:
        """Store the response for later requests, unless the client sent `store: false`."""
        if self.store:
            self.stored.keep(self.previous, self.own, response)


class ResponsesDialect:
    """The Responses protocol. `decode` gives a token's text for logprobs; `None` if no tokens are known."""

    path = "/v1/responses"

    def __init__(self, decode: Decode | None) -> None:
        self._decode = decode

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse the JSON body of a request, together with the stored response that it continues. Raises Refused."""
        fields.refuse_unknown(body, TAKEN)
        model = fields.read_model(body)
        stored = find_stored_responses(caller.dialect_state)
        previous = _find_previous(body.get("previous_response_id"), stored)
        input_items = read_input(body.get("input", []), stored)
        earlier_items = previous.conversation() + previous.response["output"] if previous is not None else []
        images: list[str] = []
        messages = messages_of(earlier_items, input_items, stored, images)
        instructions = body.get("instructions")
        if instructions is not None:
            if not isinstance(instructions, str):
                raise fields.invalid_value("instructions", "a string")
            messages.insert(0, {"role": "system", "content": instructions})
        if not messages:
            raise fields.invalid_value("input", "a string or a non-empty list of items")
        tools, namespaces = read_tools(body.get("tools"))
        choice, named_tool = read_tool_choice(body, tools)
        includes = _read_includes(body.get("include"))
        top_logprobs = fields.read_integer(body, "top_logprobs", 0, 20)
        logprobs = "message.output_text.logprobs" in includes or bool(top_logprobs)
        summary, effort = _read_reasoning(body.get("reasoning"))
        schema, engine_fields = _read_text(body.get("text"))
        seed = fields.read_seed(body)
        engine_fields |= {
            name: value for name, value in (("reasoning_effort", effort), ("seed", seed)) if value is not None
        }
        engine_fields |= fields.select_effective(body, NEUTRAL)
        _check_rest(body)
        request = ParsedRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=messages,
            images=tuple(images),
            tools=tools,
            tool_choice=choice,
            named_tool=named_tool,
            parallel_tool_calls=fields.read_boolean(body, "parallel_tool_calls", True) if tools else True,
            max_tokens=fields.read_integer(body, "max_output_tokens", 1, 1 << 31),
            **fields.read_sampling(body),
            stop=fields.read_stop(body.get("stop")),
            logprobs=logprobs,
            top_logprobs=top_logprobs or 0,
            json_schema=schema,
            engine_fields=engine_fields,
            inert_fields=fields.select_set(body, INERT),
            notes={"model": model} if model else {},
        )
        echo = {name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()}
        echo["tools"] = [_build_echo(tool) for tool in body.get("tools") or ()]
        echo["text"] = {"format": {"type": "text"}, **(body.get("text") or {})}
        encrypts_reasoning = "reasoning.encrypted_content" in includes
        output_options = Telling(
            self._decode if logprobs else None, top_logprobs or 0, summary, encrypts_reasoning, namespaces
        )
        store = fields.read_boolean(body, "store", True)
        request.options = _Options(echo, output_options, self._decode, stored, previous, input_items, store)
        request.is_streamed = fields.read_boolean(body, "stream", False)
        return request

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return a response in OpenAI's form."""
        options: _Options = request.options
        reply = replies[0]
        output = Output(options.id, options.telling, options.stored.called)
        # Only the items are needed here: the events that build them are dropped.
        for _ in output.feed(build_complete_chunk(reply)):
            pass
        for _ in output.end(_find_status(reply)):
            pass
        return options.complete_response(reply, output.items)

    def build_writer(self, request: ParsedRequest) -> StreamWriter:
        """Return the writer of a streamed answer."""
        return _ResponseWriter(request.options)

    def format_error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
        """Return an error in OpenAI's shape."""
        return error_body(refused, _PARAMS)


class InputTokensDialect(ResponsesDialect):
    """Takes the requests of Responses and answers with the number of prompt tokens only."""

    path = "/v1/responses/input_tokens"

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse a request whose prompt tokens are to be counted. Raises Refused for a field that cannot be honoured."""
        request = super().parse(body, caller)
        request.format_count = lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens}
        return request


class _ResponseWriter:
    """Writes the named, numbered events of a response."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._output = Output(options.id, options.telling, options.stored.called)
        self._sequence_number = 0

    def begin_reply(self, choice: int) -> bytes:
        """Return the first two events of a stream, both with the empty response."""
        begun = self._options.build_response("in_progress", ())
        return self._encode_event({"type": "response.created", "response": begun}) + self._encode_event(
            {"type": "response.in_progress", "response": begun}
        )

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes:
        return b"".join([self._encode_event(event) for event in self._output.feed(chunk)])

    def end_reply(self, choice: int, reply: Reply) -> bytes:
        return b"".join([self._encode_event(event) for event in self._output.end(_find_status(reply))])

    def close(self, replies: Sequence[Reply]) -> bytes:
        """Store the response, and return the last event with it: `response.completed` or `response.incomplete`."""
        response = self._options.complete_response(replies[0], self._output.items)
        return self._encode_event({"type": f"response.{response['status']}", "response": response})

    def fail(self, refused: Refused) -> bytes:
        """Store the response as failed with the items so far, and return its last event."""
        code = "server_error"
        if refused.status < 500:
            code = "rate_limit_exceeded" if refused.status == 429 else "invalid_prompt"
        error = {"code": code, "message": refused.message}
        self._output.settle()
        response = self._options.build_response("failed", self._output.items, error=error)
        self._options.store_response(response)
        return self._encode_event({"type": "response.failed", "response": response})

    def _encode_event(self, event: Event) -> bytes:
        """Return a server-sent event, named by its type, with the next sequence number."""
        numbered = {**event, "sequence_number": self._sequence_number}
        self._sequence_number += 1
        data = json.dumps(numbered, separators=(",", ":"))
        return f"event: {event['type']}\ndata: {data}\n\n".encode()


def _build_usage(reply: Reply, reasoning_tokens: int) -> dict[str, Any] | None:
    """Return the usage, or `None` if the server of a chat engine did not count its tokens."""
    if reply.prompt_tokens is None or reply.completion_tokens is None:
        return None
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _find_status(reply: Reply) -> str:
    return "incomplete" if reply.finish == "length" else "completed"


def _find_previous(name: Any, stored: StoredResponses) -> StoredResponse | None:
    """Return the stored response that a request continues, or None. Raises Refused if it is unknown or failed."""
    if name is None:
        return None
    stored_response = stored.find(fields.check_text(name, "previous_response_id"))
    if stored_response is None:
        raise Refused(
            f"Previous response with id '{name}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    if stored_response.response["status"] == "failed":
        raise fields.unsupported_value(
            "previous_response_id", "the response with this id failed, so it cannot be continued."
        )
    return stored_response


def _build_echo(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool as the response repeats it: a function always has `parameters` and `strict`."""
    return {"parameters": None, "strict": None, **tool} if tool["type"] == "function" else tool


def _read_includes(value: Any) -> list[str]:
    """Return the optional parts of the response that the client requests. Raises Refused for an unknown part."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise fields.invalid_value("include", "a list")
    for index, name in enumerate(value):
        if not isinstance(name, str) or name not in _INCLUDES:
            raise fields.unsupported_value(f"include[{index}]", f"this server's responses do not contain {name!r}.")
    return value


def _read_reasoning(value: Any) -> tuple[bool, str | None]:
    """Return (True if the client requests a summary, the effort)."""
    if value is None:
        return False, None
    if not isinstance(value, dict):
        raise fields.invalid_value("reasoning", "an object")
    for name, neutral in (("context", "auto"), ("mode", "standard")):
        if value.get(name) not in (None, neutral):
            raise fields.unsupported_value(f"reasoning.{name}", "this server's models do not support it; leave it out.")
    fields.refuse_unknown(value, {"context", "mode", "effort", "summary", "generate_summary"})
    summary_modes = [value[name] for name in ("summary", "generate_summary") if value.get(name) is not None]
    if any(mode not in ("auto", "detailed") for mode in summary_modes):
        raise fields.unsupported_value(
            "reasoning.summary", "this server returns the complete reasoning: send 'auto' or 'detailed'."
        )
    effort = value.get("effort")
    return bool(summary_modes), None if effort is None else fields.check_text(effort, "reasoning.effort")


def _read_text(value: Any) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
    """Return (the schema of the reply, fields for chat engines)."""
    if value is None:
        return None, {}
    if not isinstance(value, dict):
        raise fields.invalid_value("text", "an object")
    fields.refuse_unknown(value, {"format", "verbosity"})
    schema = fields.read_format(value.get("format"), "text.format", is_nested=False)
    engine_fields: dict[str, Any] = {}
    if schema is not None:
        engine_fields["response_format"] = _build_response_format(value["format"])
    if value.get("verbosity") is not None:
        engine_fields["verbosity"] = fields.check_text(value["verbosity"], "text.verbosity")
    return schema, engine_fields


def _build_response_format(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return `text.format` as Chat Completions' `response_format`."""
    if value["type"] != "json_schema":
        return dict(value)
    return {"type": "json_schema", "json_schema": {name: value[name] for name in value if name != "type"}}


def _check_rest(body: Mapping[str, Any]) -> None:
    """Raise Refused for unsupported values of partly supported fields."""
    if fields.read_boolean(body, "background", False):
        raise fields.unsupported_value(
            "background", "this server has no background responses; wait for the response, or set 'stream': true."
        )
    if body.get("truncation") not in (None, *ONLY_VALUES["truncation"]):
        raise fields.unsupported_value(
            "truncation",
            "this server never truncates a conversation: send 'disabled', leave the field out, or let "
            "ajet.gateway.leave_out_fields name it.",
        )
    fields.read_integer(body, "max_tool_calls", 1, 1 << 31)
    metadata = body.get("metadata")
    if metadata is not None:
        are_texts = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
        if not are_texts:
            raise fields.invalid_value("metadata", "an object of strings")
    for name in ("user", "prompt_cache_key", "safety_identifier"):
        if not isinstance(body.get(name, ""), (str, type(None))):
            raise fields.invalid_value(name, "a string")
    if body.get("service_tier") not in (None, *_TIERS):
        raise fields.invalid_value("service_tier", "one of " + ", ".join(_TIERS))
    options = body.get("stream_options")
    if options is not None:
        if not isinstance(options, dict) or not body.get("stream"):
            raise fields.invalid_value("stream_options", "an object, together with 'stream': true")
        fields.refuse_unknown(options, {"include_obfuscation"})
        if fields.read_boolean(options, "include_obfuscation", False):
            raise fields.unsupported_value(
                "stream_options.include_obfuscation",
                "this server does not obfuscate streams; send false, or leave the field out.",
            )


_PAGE = 20


def response_routes(find_state: Callable[[Request], dict[str, Any]]) -> list[Route]:
    """Return the routes that read, list, cancel and delete stored responses.

    Args:
        find_state: Returns the dialects' state in the session of a request's key, or raises Refused.
    """

    async def serve_response(request: Request) -> Response:
        """Answer with a stored response, or delete it. Raises Refused."""
        stored = find_stored_responses(find_state(request))
        name = request.path_params["name"]
        if request.method == "DELETE":
            return JSONResponse(stored.delete(name))
        if request.query_params.get("stream", "false") != "false":
            raise unsupported_value(
                "stream", "the response has ended and can be read only as one JSON object; leave 'stream' out."
            )
        return JSONResponse(stored.get(name).response)

    async def list_items(request: Request) -> Response:
        """Answer with a page of a stored response's input items. Raises Refused."""
        stored = find_stored_responses(find_state(request)).get(request.path_params["name"])
        query = request.query_params
        order, limit = query.get("order", "desc"), query.get("limit", str(_PAGE))
        if order not in ("asc", "desc"):
            raise invalid_value("order", "'asc' or 'desc'")
        # The length comes first: int() of a text of any length could take long.
        if not (len(limit) <= 3 and limit.isascii() and limit.isdigit() and 1 <= int(limit) <= 100):
            raise invalid_value("limit", "an integer from 1 to 100")
        return JSONResponse(item_list(stored, order=order, limit=int(limit), after=query.get("after")))

    async def refuse_cancel(request: Request) -> Response:
        """Raise Refused: no response runs in the background here, so none can be cancelled."""
        find_stored_responses(find_state(request)).get(request.path_params["name"])
        raise Refused("Only responses created with 'background': true can be cancelled.", code="invalid_value")

    return [
        Route("/v1/responses/{name}", serve_response, methods=["GET", "DELETE"]),
        Route("/v1/responses/{name}/input_items", list_items, methods=["GET"]),
        Route("/v1/responses/{name}/cancel", refuse_cancel, methods=["POST"]),
    ]
