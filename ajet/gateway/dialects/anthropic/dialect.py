"""Messages and count_tokens: parsing of requests, and unstreamed answers.

Invariant: usage counts the captured tokens and stop reasons are honest. The run decides whether the model thinks. A
client without thinking enabled gets no thinking, as its code expects, and its quoted replies are recognised
nevertheless.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.anthropic.errors import error_body
from ajet.gateway.dialects.anthropic.messages import read_messages, read_system
from ajet.gateway.dialects.anthropic.reply import ThinkingDisplay, build_content, build_stop, build_usage
from ajet.gateway.dialects.anthropic.stream import MessageWriter
from ajet.gateway.dialects.chat import read_tools as read_chat_tools
from ajet.gateway.dialects.contract import Caller, StreamWriter
from ajet.gateway.dialects.fields import check_text, invalid_value, read_boolean, unsupported_value
from ajet.gateway.reply import Reply
from ajet.gateway.request import ParsedRequest, Refused

INERT = (
    "metadata", "service_tier", "cache_control", "inference_geo", "speed", "user_profile_id", "workspace_id",
)  # fmt: skip
"""Fields that do not affect the reply."""
TAKEN = {
    *INERT,
    "model", "messages", "system", "max_tokens", "tools", "tool_choice", "temperature", "top_p", "top_k",
    "stop_sequences", "stream", "thinking", "output_config", "output_format",
}  # fmt: skip
"""All known fields of a request."""
_MAX_STOPS = 16


@dataclass(slots=True)
class MessagesOptions:
    """Settings of a request that shape its answer."""

    model: str
    thinking: ThinkingDisplay
    room: int
    """The limit on the tokens of prompt and reply together."""
    id: str = field(default_factory=lambda: "msg_" + secrets.token_hex(12))

    @property
    def signature(self) -> str:
        """The signature of thinking blocks, derived from the message's id.

        It proves nothing: replies that come back are recognised by their content.
        """
        return self.id.removeprefix("msg_")


class AnthropicDialect:
    """The Messages protocol. `room` is the limit on the tokens of prompt and reply together."""

    path = "/v1/messages"

    def __init__(self, room: int) -> None:
        self._context_room = room

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse the JSON body of a Messages request. Raises Refused for a field that cannot be honoured."""
        request, thinking = _parse_request(body, caller)
        if request.max_tokens is None:
            raise fields.invalid_value("max_tokens", "an integer of at least 1")
        if request.messages[-1]["role"] == "assistant":
            raise fields.unsupported_value(
                "messages",
                ("the last message must have the role 'user': this server cannot continue an assistant message."),
            )
        request.options = MessagesOptions(body.get("model") or "ajet", thinking, self._context_room)
        request.is_streamed = fields.read_boolean(body, "stream", False)
        return request

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the JSON body of the answer: a message in Anthropic's form."""
        options: MessagesOptions = request.options
        (reply,) = replies
        return {
            "id": options.id,
            "type": "message",
            "role": "assistant",
            "model": options.model,
            "content": build_content(reply.message or {}, options.thinking, options.signature),
            **build_stop(reply, options.room),
            "usage": build_usage(reply.prompt_tokens, reply.completion_tokens),
        }

    def build_writer(self, request: ParsedRequest) -> StreamWriter:
        """Return the writer of a streamed answer."""
        options: MessagesOptions = request.options
        return MessageWriter(options.id, options.model, options.thinking, options.signature, options.room)

    def format_error(self, refused: Refused, request_id: str) -> dict[str, Any]:
        """Return an error in Anthropic's shape."""
        return error_body(refused, request_id)


class CountTokensDialect(AnthropicDialect):
    """Takes the requests of Messages and answers with the number of prompt tokens only."""

    path = "/v1/messages/count_tokens"

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse a request whose prompt tokens are to be counted. Raises Refused for a field that cannot be honoured."""
        request, _ = _parse_request(body, caller)
        request.format_count = lambda tokens: {"input_tokens": tokens}
        return request


def _parse_request(body: Mapping[str, Any], caller: Caller) -> tuple[ParsedRequest, ThinkingDisplay]:
    """Return the parsed request, and how its thinking is shown to the client. Raises Refused."""
    if body.get("thread") is not None:  # clients continue without threads after this error code
        message = "thread: this server does not store conversations; send all messages of the conversation."
        raise Refused(message, param="thread", code="thread_unsupported_request")
    fields.refuse_unknown(body, TAKEN)
    model = fields.read_model(body)
    tools = read_tools(body.get("tools"))
    choice, named_tool, allows_parallel = read_tool_choice(body, tools)
    thinking, budget = _read_thinking(body.get("thinking"))
    notes = {"model": model, "thinking_budget": budget}
    images: list[str] = []
    request = ParsedRequest(
        agent=caller.agent,
        target=caller.target,
        debug_model=caller.debug_model,
        messages=[*read_system(body.get("system")), *read_messages(body.get("messages"), images)],
        images=tuple(images),
        tools=tools,
        tool_choice=choice,
        named_tool=named_tool,
        parallel_tool_calls=allows_parallel,
        max_tokens=fields.read_integer(body, "max_tokens", 1, 1 << 31),
        **fields.read_sampling(body),
        stop=_read_stops(body.get("stop_sequences")),
        json_schema=_read_schema(body),
        engine_fields=_read_effort(body),
        inert_fields=fields.select_set(body, INERT),
        notes={name: value for name, value in notes.items() if value},
    )
    return request, thinking


def _read_thinking(value: Any) -> tuple[ThinkingDisplay, int | None]:
    """Return the display of thinking, and its budget in tokens (`None` if not set)."""
    if value is None:
        return "hidden", None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise fields.invalid_value("thinking", "an object with a 'type'")
    kind = value["type"]
    if kind == "disabled":
        return "hidden", None
    if kind not in ("enabled", "adaptive"):
        raise fields.unsupported_value(
            "thinking.type", "this server supports 'enabled', 'adaptive' and 'disabled' only."
        )
    display = value.get("display")
    if display not in (None, "summarized", "omitted"):
        raise fields.unsupported_value("thinking.display", "this server supports 'summarized' and 'omitted' only.")
    try:
        budget = fields.read_integer(value, "budget_tokens", 1, 1 << 31)
    except Refused:
        raise fields.invalid_value("thinking.budget_tokens", "a positive integer") from None
    if kind == "enabled" and budget is None:
        raise fields.invalid_value("thinking.budget_tokens", "a positive integer")
    return ("omitted" if display == "omitted" else "shown"), budget


def _read_stops(value: Any) -> tuple[str, ...]:
    """Return the stop sequences, or () if not set. Raises Refused."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_STOPS:
        raise fields.invalid_value("stop_sequences", f"a list of at most {_MAX_STOPS} strings")
    return tuple([fields.check_text(stop, f"stop_sequences[{index}]") for index, stop in enumerate(value)])


def _read_effort(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effort of thinking by its name in Chat Completions, or {} if not set."""
    config = body.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    return {} if effort is None else {"reasoning_effort": fields.check_text(effort, "output_config.effort")}


def _read_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of the reply, from `output_config.format` or `output_format`. None: any text."""
    config, location = body.get("output_config"), "output_config"
    if config is None:
        config = {}
    if not isinstance(config, dict):
        raise fields.invalid_value(location, "an object")
    for name in config:
        if name not in ("format", "effort") and config[name] is not None:
            raise fields.unsupported_value(
                f"{location}.{name}", "this server does not support the setting; leave it out."
            )
    output_format, location = config.get("format"), "output_config.format"
    if output_format is None:
        output_format, location = body.get("output_format"), "output_format"
    if output_format is None:
        return None
    if not isinstance(output_format, dict) or output_format.get("type") != "json_schema":
        raise fields.invalid_value(f"{location}.type", "'json_schema'")
    return fields.check_schema(output_format.get("schema"), f"{location}.schema")


def model_info(name: str, max_input_tokens: int, max_tokens: int) -> dict[str, Any]:
    """Return the description of a model in Anthropic's form. The limits are in tokens."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": max_input_tokens,
        "max_tokens": max_tokens,
    }


def model_page(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a list of models as the only page of Anthropic's paged form."""
    return {
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }


# `tools` and `tool_choice` of Messages in the shape of Chat Completions.
# Invariant: only tools with a schema from the client are accepted; features without meaning for a text model are
# refused by name.
Choice = tuple[Any, str | None, bool]
"""(auto | none | required | named, the tool's name, whether several calls may be made at once)."""


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return the request's tools in the form of Chat Completions, or `None` for no tools. Raises Refused."""
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise invalid_value("tools", "a list of tools")
    tools = [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(value)]
    try:
        return read_chat_tools(tools)
    except Refused as refused:
        # The check names fields of Chat Completions; the client knows its own names.
        location = (refused.param or "").replace(".function.parameters", ".input_schema").replace(".function.", ".")
        message = refused.message.replace(refused.param or "\0", location)
        raise Refused(message, status=refused.status, code=refused.code, param=location) from None


def _read_tool(tool: Any, where: str) -> dict[str, Any]:
    """Return a tool in the form of Chat Completions. Raises Refused for tools that the server would have to run."""
    if not isinstance(tool, dict):
        raise invalid_value(where, "an object")
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise fields.unsupported_tool(f"{where}.type", kind, "type 'custom', defined by an 'input_schema'")
    if read_boolean(tool, "defer_loading", False, where):
        raise unsupported_value(f"{where}.defer_loading", "this server has no tool search; leave the field out.")
    if tool.get("allowed_callers") not in (None, [], ["direct"]):
        raise unsupported_value(
            f"{where}.allowed_callers", "this server supports 'direct' only: the model itself calls the tools."
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise invalid_value(f"{where}.input_schema", "a JSON schema (an object)")
    examples = tool.get("input_examples") or []
    if not isinstance(examples, list) or not all(isinstance(example, dict) for example in examples):
        raise invalid_value(f"{where}.input_examples", "a list of objects")
    function: dict[str, Any] = {"name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = {**schema, "examples": examples} if examples else schema
    if read_boolean(tool, "strict", False, where):
        function["strict"] = True
    return {"type": "function", "function": function}


def read_tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> Choice:
    """Return the kind of tool choice, the tool's name if "named", and whether parallel calls are allowed. Raises
    Refused.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return "auto", None, True
    if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
        raise invalid_value("tool_choice.type", "'auto', 'any', 'tool' or 'none'")
    allows_parallel = not read_boolean(choice, "disable_parallel_tool_use", False, "tool_choice")
    kind = choice["type"]
    if kind in ("auto", "none"):
        return kind, None, allows_parallel or not tools
    if not tools:
        raise invalid_value("tool_choice", "'tools' in the same request")
    if kind == "any":
        return "required", None, allows_parallel
    name = check_text(choice.get("name"), "tool_choice.name")
    if all(tool["function"]["name"] != name for tool in tools):
        raise invalid_value("tool_choice.name", "the name of a tool that 'tools' lists")
    return "named", name, allows_parallel
