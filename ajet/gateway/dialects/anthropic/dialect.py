"""Messages and count_tokens: requests read, replies written whole.

Invariant: usage counts the captured tokens and stop reasons are honest. Whether the model thinks is the run's matter;
a client that has not asked for thinking is shown none, as its code expects, and what it sends back is recognised all
the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.gateway.dialects import fields
from ajet.gateway.dialects.anthropic.errors import error_body
from ajet.gateway.dialects.anthropic.messages import read_messages, read_system
from ajet.gateway.dialects.anthropic.reply import Shown, content_of, stop_of, usage_of
from ajet.gateway.dialects.anthropic.stream import EventWriter
from ajet.gateway.dialects.anthropic.tools import read_tool_choice, read_tools
from ajet.gateway.dialects.contract import Asked, Caller, Writer
from ajet.gateway.dialects.response_format import read_schema
from ajet.gateway.turn import Refused, Turn, TurnRequest

_ASIDES = (
    "metadata", "service_tier", "cache_control", "inference_geo", "speed", "user_profile_id", "workspace_id",
)  # fmt: skip
"""They ask nothing of the reply."""
TAKEN = {
    *_ASIDES,
    "model", "messages", "system", "max_tokens", "tools", "tool_choice", "temperature", "top_p", "top_k",
    "stop_sequences", "stream", "thinking", "output_config", "output_format",
}  # fmt: skip
"""The fields of a request; docs/dialects.md names the same."""
_MOST_STOPS = 16


@dataclass(frozen=True, slots=True)
class Options:
    """The properties of a request that its reply depends on."""

    model: str
    thinking: Shown
    room: int
    """Tokens that a prompt and its reply may have together."""
    id: str = field(default_factory=lambda: "msg_" + secrets.token_hex(12))

    @property
    def signature(self) -> str:
        """The signature of thinking blocks; opaque. Replies are recognised by what they say, so it verifies nothing."""
        return self.id.removeprefix("msg_")


class AnthropicDialect:
    """See Dialect. `room`: the tokens that a prompt and its reply may have together."""

    path = "/v1/messages"

    def __init__(self, room: int) -> None:
        self._room = room

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """The request as a turn. Raises Refused."""
        request, thinking = _request(body, caller)
        if request.max_tokens is None:
            raise fields.wrong("max_tokens", "an integer of at least 1")
        if request.messages[-1]["role"] == "assistant":
            raise fields.unsupported(
                "messages", "the last message must be a user's: this model does not continue a turn of the assistant."
            )
        options = Options(body.get("model") or "ajet", thinking, self._room)
        return Asked([request], fields.boolean(body, "stream", False), options)

    def reply(self, asked: Asked, turns: Sequence[Turn]) -> dict[str, Any]:
        """A message."""
        options: Options = asked.options
        [turn] = turns
        return {
            "id": options.id,
            "type": "message",
            "role": "assistant",
            "model": options.model,
            "content": content_of(turn.message, options.thinking, options.signature),
            **stop_of(turn, options.room),
            "usage": usage_of(turn.prompt_tokens, turn.completion_tokens),
        }

    def writer(self, asked: Asked) -> Writer:
        """See Writer."""
        options: Options = asked.options
        return EventWriter(options.id, options.model, options.thinking, options.signature, options.room)

    def error(self, refused: Refused, request_id: str) -> dict[str, Any]:
        """Anthropic's error shape."""
        return error_body(refused, request_id)


class CountTokensDialect(AnthropicDialect):
    """Takes what Messages takes and answers with the prompt's length alone."""

    path = "/v1/messages/count_tokens"

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked:
        """See Asked.count. Raises Refused."""
        request, _ = _request(body, caller)
        return Asked([request], False, count=lambda tokens: {"input_tokens": tokens})


def _request(body: Mapping[str, Any], caller: Caller) -> tuple[TurnRequest, Shown]:
    if body.get("thread") is not None:  # with this code, clients go on without
        message = "thread: conversations are not held here; send all of their messages."
        raise Refused(message, param="thread", code="thread_unsupported_request")
    fields.refuse_unknown(body, TAKEN)
    model = fields.model(body)
    tools = read_tools(body.get("tools"))
    choice, named, several = read_tool_choice(body, tools)
    thinking, budget = _thinking(body.get("thinking"))
    notes = {"model": model, "thinking_budget": budget}
    images: list[str] = []
    request = TurnRequest(
        agent=caller.agent,
        target=caller.target,
        debug_model=caller.debug_model,
        messages=[*read_system(body.get("system")), *read_messages(body.get("messages"), images)],
        images=tuple(images),
        tools=tools,
        tool_choice=choice,
        named_tool=named,
        parallel_tool_calls=several,
        max_tokens=fields.integer(body, "max_tokens", 1, 1 << 31),
        temperature=fields.number(body, "temperature", 0, 2),
        top_p=fields.top_p(body),
        top_k=fields.top_k(body),
        stop=_stops(body.get("stop_sequences")),
        json_schema=_schema(body),
        passed=_effort(body),
        asides=fields.given(body, _ASIDES),
        notes={name: value for name, value in notes.items() if value},
    )
    return request, thinking


def _thinking(value: Any) -> tuple[Shown, int | None]:
    """(what of the model's thinking the client wants to see, the tokens it has in mind for it)."""
    if value is None:
        return "hidden", None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise fields.wrong("thinking", "an object with a 'type'")
    kind = value["type"]
    if kind == "disabled":
        return "hidden", None
    if kind not in ("enabled", "adaptive"):
        raise fields.unsupported("thinking.type", "only 'enabled', 'adaptive' and 'disabled' are known.")
    display = value.get("display")
    if display not in (None, "summarized", "omitted"):
        raise fields.unsupported("thinking.display", "only 'summarized' and 'omitted' are known.")
    try:
        budget = fields.integer(value, "budget_tokens", 1, 1 << 31)
    except Refused:
        raise fields.wrong("thinking.budget_tokens", "a positive integer") from None
    if kind == "enabled" and budget is None:
        raise fields.wrong("thinking.budget_tokens", "a positive integer")
    return ("omitted" if display == "omitted" else "shown"), budget


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MOST_STOPS:
        raise fields.wrong("stop_sequences", f"a list of at most {_MOST_STOPS} strings")
    return tuple([fields.text(stop, f"stop_sequences[{index}]") for index, stop in enumerate(value)])


def _effort(body: Mapping[str, Any]) -> dict[str, Any]:
    """The effort of thinking that the request asks for, as a turn has it; {} where it says nothing."""
    config = body.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    return {} if effort is None else {"reasoning_effort": fields.text(effort, "output_config.effort")}


def _schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    config, where = body.get("output_config"), "output_config"
    if config is None:
        config = {}
    if not isinstance(config, dict):
        raise fields.wrong(where, "an object")
    for name in config:
        if name not in ("format", "effort") and config[name] is not None:
            raise fields.unsupported(f"{where}.{name}", "this model has no such setting.")
    wanted, where = config.get("format"), "output_config.format"
    if wanted is None:
        wanted, where = body.get("output_format"), "output_format"
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise fields.wrong(f"{where}.type", "'json_schema'")
    return read_schema(wanted.get("schema"), f"{where}.schema")
