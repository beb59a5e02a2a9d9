"""OpenAI Chat Completions, streamed or not.

Invariant: usage counts the captured tokens, finish reasons are honest, and `logprobs.content` has one entry for each
captured token. Fields for chat engines only are passed on to a chat engine, and refused by name by token engines.
Messages leave `parse` with complete tool calls: a name, and arguments as JSON text.
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
from ajet.gateway.dialects.contract import Caller, StreamWriter
from ajet.gateway.dialects.token_logprobs import build_token_logprobs
from ajet.gateway.reply import Reply, ReplyChunk, TopLogprobs
from ajet.gateway.request import ParsedRequest, Refused
from ajet.schema.call import ToolChoice

INERT = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
)  # fmt: skip
"""Fields that do not affect the reply."""
TAKEN = {
    *INERT,
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "n", "stop", "logprobs", "top_logprobs",
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stream", "stream_options", "seed",
    "response_format", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p",
    "reasoning_effort", "verbosity", "modalities",
}  # fmt: skip
"""Fields that a request may have; any other field is refused."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
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
"""Fields that only a chat engine may honour, with their neutral values. The session honours `seed` and
`response_format` itself if possible."""
_LIMITS = ("max_completion_tokens", "max_tokens")
_MAX_LIMIT = 1 << 31
_BASIC = frozenset({"model", "messages", "stream", *_LIMITS})
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_DELTA = {"content"}
_CHUNK = "chat.completion.chunk"
_FIRST_DELTA = '{"role":"assistant","content":""}'
_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(slots=True)
class _Options:
    model: str
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    is_call_named: bool = False
    """True if the client demands a call of one tool. The reply then ends with `stop`, as at OpenAI and vLLM."""
    id: str = field(default_factory=lambda: "chatcmpl-" + secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def build_head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ChatDialect:
    """The Chat Completions protocol. `decode` gives a token's text for logprobs; `None` if no tokens are known."""

    path = "/v1/chat/completions"

    def __init__(self, decode: Callable[[Sequence[int]], str] | None) -> None:
        self._decode = decode

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse the JSON body of a request. Raises Refused for a field that cannot be honoured.

        Most requests have basic fields only, and skip the checks of all others.
        """
        other_fields = body.keys() - _BASIC
        if other_fields:
            fields.refuse_unknown(body, TAKEN)
        model, limits = body.get("model"), [body[name] for name in _LIMITS if body.get(name) is not None]
        if not isinstance(model, str):
            model = fields.read_model(body)
        for name in _LIMITS if any(type(limit) is not int or not 0 < limit <= _MAX_LIMIT for limit in limits) else ():
            fields.read_integer(body, name, 1, _MAX_LIMIT)  # refuses the first wrong limit
        is_streamed = "stream" in body and fields.read_boolean(body, "stream", False)
        images: list[str] = []
        request = ParsedRequest(
            agent=caller.agent,
            target=caller.target,
            debug_model=caller.debug_model,
            messages=read_messages(body.get("messages"), images),
            max_tokens=min(limits, default=None),
            counts_tokens=not is_streamed,
            notes={"model": model} if model else {},
            is_streamed=is_streamed,
        )
        options = request.options = _Options(model or "ajet")
        if images:
            request.images = tuple(images)
        if other_fields:
            self._parse_others(request, options, body)
        return request

    def _parse_others(self, request: ParsedRequest, options: _Options, body: Mapping[str, Any]) -> None:
        """Parse the rarely used fields of a request, and store them in `request` and `options`."""
        tools = request.tools = read_tools(body.get("tools"))
        request.tool_choice, request.named_tool = _read_tool_choice(body, tools)
        if tools:
            request.parallel_tool_calls = fields.read_boolean(body, "parallel_tool_calls", True)
        options.is_call_named = request.named_tool is not None
        if "logprobs" in body or "top_logprobs" in body:
            request.logprobs = options.logprobs = fields.read_boolean(body, "logprobs", False)
            request.top_logprobs = options.top_logprobs = fields.read_integer(body, "top_logprobs", 0, 20) or 0
            if request.top_logprobs and not request.logprobs:
                raise fields.invalid_value("top_logprobs", "'logprobs': true in the same request")
        fields.read_seed(body)  # checked only: the effective fields include the seed
        if "stream_options" in body:
            options.include_usage = fields.read_include_usage(body, request.is_streamed)
            request.counts_tokens = options.include_usage or not request.is_streamed
        for name, value in fields.read_sampling(body).items():
            setattr(request, name, value)
        request.stop = fields.read_stop(body.get("stop"))
        request.json_schema = fields.read_format(body.get("response_format"), "response_format", is_nested=True)
        request.engine_fields = fields.select_effective(body, NEUTRAL)
        request.inert_fields = fields.select_set(body, INERT)
        request.replies_per_prompt = fields.read_integer(body, "n", 1, 128) or 1

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return a chat.completion in OpenAI's form."""
        options: _Options = request.options
        choices = []
        for index, reply in enumerate(replies):
            logprobs = None
            if options.logprobs:
                logprobs = self.format_logprobs(options, reply.ids, reply.unit_logprobs, reply.top)
            choices.append(
                {
                    "index": index,
                    "message": {"refusal": None, **(reply.message or {})},
                    "logprobs": logprobs,
                    "finish_reason": _find_finish_reason(options, reply),
                }
            )
        return {**options.build_head("chat.completion"), "choices": choices, "usage": count_usage(replies[:1], replies)}

    def build_writer(self, request: ParsedRequest) -> StreamWriter:
        """Return the writer of a streamed answer."""
        return _ChunkWriter(self, request.options)

    def format_error(self, refused: Refused, request_id: str = "") -> dict[str, Any]:
        """Return an error in OpenAI's shape."""
        return error_body(refused)

    def format_logprobs(
        self, options: _Options, ids: Sequence[int], logprobs: Sequence[float], top: TopLogprobs
    ) -> dict[str, Any] | None:
        """Return the `logprobs` of a choice for the given tokens, or `None` without tokens or a decoder."""
        if self._decode is None or not len(ids):
            return None
        content = build_token_logprobs(self._decode, options.top_logprobs, ids, logprobs, top)
        return {"content": content, "refusal": None}


class _ChunkWriter:
    """Writes the chat.completion.chunk events of replies."""

    def __init__(self, dialect: ChatDialect, options: _Options) -> None:
        self._dialect, self._options = dialect, options
        # The same text as from _ENCODE, in a tenth of the time: measurable in short streams.
        head = f'"id":"{options.id}","object":"{_CHUNK}","created":{options.created}'
        self._event_start = f'data: {{{head},"model":{encode_basestring_ascii(options.model)},"choices":['
        # If the last chunk has usage, the others have null, as in OpenAI's reference.
        self._event_end = '],"usage":null}\n\n' if options.include_usage else "]}\n\n"

    def begin_reply(self, choice: int) -> bytes:
        return self._write_plain(choice, _FIRST_DELTA)

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes:
        """Return the next part of a reply as server-sent events."""
        if not self._options.logprobs and len(chunk.deltas) == 1:
            (delta,) = chunk.deltas
            if delta.keys() == _TEXT_DELTA:  # almost all chunks: written without the slower JSON encoder
                return self._write_plain(choice, f'{{"content":{encode_basestring_ascii(delta["content"])}}}')
        # Tokens whose text is not complete yet need an event for their logprobs.
        deltas = chunk.deltas or ([{"content": ""}] if self._options.logprobs and len(chunk.ids) else [])
        events: list[bytes] = []
        for index, delta in enumerate(deltas):
            logprobs = None
            if self._options.logprobs and index == 0:  # the chunk's tokens are listed once
                logprobs = self._dialect.format_logprobs(self._options, chunk.ids, chunk.logprobs, chunk.top)
            body = _ENCODE({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None})
            events.append(f"{self._event_start}{body}{self._event_end}".encode())
        return b"".join(events)

    def end_reply(self, choice: int, reply: Reply) -> bytes:
        return self._write_plain(choice, "{}", f'"{_find_finish_reason(self._options, reply)}"')

    def close(self, replies: Sequence[Reply]) -> bytes:
        """Return the usage if requested, and the final mark of the stream."""
        usage = b""
        if self._options.include_usage:
            head = self._options.build_head(_CHUNK)
            usage = encode_event({**head, "choices": [], "usage": count_usage(replies[:1], replies)})
        return usage + b"data: [DONE]\n\n"

    def fail(self, refused: Refused) -> bytes:
        return encode_event(error_body(refused))

    def _write_plain(self, choice: int, delta: str, finish: str = "null") -> bytes:
        """Return an event without logprobs from JSON texts."""
        body = f'{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":{finish}}}'
        return f"{self._event_start}{body}{self._event_end}".encode()


def _find_finish_reason(options: _Options, reply: Reply) -> str:
    """Return OpenAI's finish reason: "stop" after a call of the tool that the client named, as at OpenAI and vLLM."""
    return "stop" if options.is_call_named and reply.finish == "tool_calls" else reply.finish


def error_body(refused: Refused, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return an error in the form of OpenAI's servers.

    Args:
        names: Field name in Chat Completions -> its name in the dialect.
    """
    param = refused.param
    if names and param and refused.code != "unknown_parameter":  # an unknown field has the client's own name already
        param = names.get(param, param)
    default = "server_error" if refused.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(refused.status, default)
    return {"error": {"message": refused.message, "type": kind, "param": param, "code": refused.code}}


def encode_event(value: dict[str, Any]) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + _ENCODE(value).encode() + b"\n\n"


def count_usage(prompts: Sequence[Reply], replies: Sequence[Reply]) -> dict[str, int] | None:
    """Return OpenAI's token counts, or `None` if the server of a chat engine did not count its tokens.

    Args:
        prompts: One reply of each prompt: a prompt with several replies counts once.
        replies: All replies.
    """
    prompt_tokens = completion_tokens = 0
    for reply in prompts:
        if reply.prompt_tokens is None:
            return None
        prompt_tokens += reply.prompt_tokens
    for reply in replies:
        if reply.completion_tokens is None:
            return None
        completion_tokens += reply.completion_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def read_messages(value: Any, images: list[str]) -> list[dict[str, Any]]:
    """Return the request's checked messages.

    Args:
        images: The places of images are added to this list, such as "messages[0].content[1].type".
    """
    if not isinstance(value, list) or not value:
        raise fields.invalid_value("messages", "a non-empty list of messages")
    messages: list[dict[str, Any]] = []
    for index, message in enumerate(value):
        if isinstance(message, dict) and len(message) == 2:
            role, content = message.get("role"), message.get("content")
            if role in _ROLES and isinstance(content, str):  # almost all messages: nothing else to check
                messages.append({"role": role, "content": content})
                continue
        messages.append(_read_message(message, f"messages[{index}]", images))
    return messages


def _read_message(message: Any, where: str, images: list[str]) -> dict[str, Any]:
    """Return the checked message. The places of images in a user's message are added to `images`. Raises Refused."""
    if not isinstance(message, dict):
        raise fields.invalid_value(where, "an object")
    role = message.get("role")
    if role not in _ROLES:
        raise fields.invalid_value(f"{where}.role", "one of " + ", ".join(_ROLES))
    calls = message.get("tool_calls") if role == "assistant" else None
    checked: dict[str, Any] = {"role": role}
    content: Any = fields.read_content(message.get("content"), f"{where}.content", images if role == "user" else None)
    if role == "assistant":
        if message.get("function_call"):
            raise fields.unsupported_value(f"{where}.function_call", "use tool_calls.")
        checked["content"] = content if content or not calls else None  # OpenAI's form: null next to tool calls
        if checked["content"] is None and not calls:
            checked["content"] = ""
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str):
            checked["reasoning_content"] = thought
        if calls:
            checked["tool_calls"] = _read_tool_calls(calls, f"{where}.tool_calls")
    elif content is None:
        raise fields.invalid_value(f"{where}.content", "a string or a list of text blocks")
    else:
        checked["content"] = content
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            checked[name] = fields.check_text(message[name], f"{where}.{name}")
    return checked


def _read_tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Return the checked tool calls of a message, with arguments as JSON text."""
    if not isinstance(calls, list):
        raise fields.invalid_value(where, "a list of tool calls")
    checked_calls: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise fields.invalid_value(f"{where}[{index}].function", "an object")
        name = fields.check_text(function.get("name"), f"{where}[{index}].function.name")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(arguments or "", str):
            raise fields.invalid_value(f"{where}[{index}].function.arguments", "a string that contains JSON")
        checked: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments or ""}}
        if call.get("id") is not None:
            checked["id"] = fields.check_text(call["id"], f"{where}[{index}].id")
        checked_calls.append(checked)
    return checked_calls


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return the request's checked tools, or `None` for no tools."""
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise fields.invalid_value("tools", "a list of tools")
    for index, tool in enumerate(value):
        location = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise fields.invalid_value(location, "an object")
        if tool.get("type") != "function":
            raise fields.unsupported_tool(f"{location}.type", tool.get("type"))
        function = tool.get("function")
        if not isinstance(function, dict):
            raise fields.invalid_value(f"{location}.function", "an object")
        fields.check_text(function.get("name"), f"{location}.function.name")
        if not isinstance(function.get("description") or "", str):
            raise fields.invalid_value(f"{location}.function.description", "a string")
        strict = fields.read_boolean(function, "strict", False, f"{location}.function")
        fields.check_parameters(function.get("parameters"), f"{location}.function.parameters", strict=strict)
    return value


def _read_tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> tuple[ToolChoice, str | None]:
    """Return the kind of choice ("auto", "none", "required" or "named"), and the tool's name if named."""
    choice = body.get("tool_choice")
    if choice is None or choice == "auto":
        return "auto", None
    if choice == "none":
        return "none", None
    if not tools:
        raise fields.invalid_value("tool_choice", "'tools' in the same request")
    if choice in ("required", "any"):
        return "required", None
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict):
        raise fields.invalid_value("tool_choice", "'auto', 'none', 'required' or the name of a function")
    name = fields.check_text(function.get("name"), "tool_choice.function.name")
    if all(tool["function"]["name"] != name for tool in tools):
        raise fields.invalid_value("tool_choice.function.name", "the name of a tool that 'tools' lists")
    return "named", name
