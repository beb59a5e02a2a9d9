"""A request to another's endpoint, read: its messages and tools in the shape of Chat Completions.

Invariant: nothing is refused, for the endpoint is not ours. What the readers of the dialects know is brought to their
shape; of anything else the request is kept as it was sent (`Sent.raw`), so that nothing of it is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.gateway.dialects import anthropic
from ajet.gateway.dialects.anthropic import messages as anthropic_messages
from ajet.gateway.dialects.chat import read_messages, read_tools
from ajet.gateway.dialects.responses import items, kept
from ajet.gateway.dialects.responses import tools as responses_tools
from ajet.gateway.remote_reply import open_reasoning
from ajet.gateway.remote_stream import DialectName
from ajet.gateway.request import Refused
from ajet.schema.secrets import is_secret_name

Message = dict[str, Any]
DIALECTS: Mapping[str, DialectName] = {
    "chat/completions": "chat",
    "completions": "completions",
    "responses": "responses",
    "messages": "anthropic",
}
"""By the path after /v1/: the calls that are recorded."""
_SAID = ("messages", "system", "prompt", "input", "instructions", "tools", "model", "stream", "stream_options")
"""What of a request is not a setting."""
_UNREADABLE = (Refused, LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Sent:
    """A client's request: messages, tools, settings."""

    messages: tuple[Message, ...]
    tools: Sequence[Message] | None
    model: str
    settings: Mapping[str, Any]
    """What else it says, without keys."""
    follows: str | None = None
    """Responses: the id of the response whose conversation it goes on with."""
    raw: Mapping[str, Any] | None = None
    """All of it, where its messages or tools could not be read whole."""


def read_request(dialect: DialectName, body: Mapping[str, Any]) -> Sent:
    """Never fails."""
    whole = True
    try:
        messages = _MESSAGES[dialect](body)
    except _UNREADABLE:
        messages, whole = [_as_text(body)], False
    try:
        tools = _TOOLS[dialect](body.get("tools"))
    except _UNREADABLE:
        tools, whole = None, False
    told = without_keys({name: value for name, value in body.items() if name not in _SAID})
    follows, model = body.get("previous_response_id"), body.get("model")
    return Sent(
        tuple(messages),
        tools,
        model if isinstance(model, str) else "",
        told,
        follows if isinstance(follows, str) else None,
        None if whole else without_keys(body),
    )


def without_keys(value: Any) -> Any:
    """A tree of JSON without what lies under the name of a secret (a tool's `authorization`)."""
    if isinstance(value, Mapping):
        return {
            name: "[redacted]" if isinstance(item, str) and is_secret_name(str(name)) else without_keys(item)
            for name, item in value.items()
        }
    return [without_keys(item) for item in value] if isinstance(value, list) else value


def _chat(body: Mapping[str, Any]) -> list[Message]:
    return read_messages(body.get("messages"), [])


def _completions(body: Mapping[str, Any]) -> list[Message]:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise ValueError("no single text")
    return [{"role": "user", "content": prompt}]


def _responses(body: Mapping[str, Any]) -> list[Message]:
    memory = kept.KeptResponses()
    given = body.get("input", [])
    own = items.read_input(open_reasoning(given) if isinstance(given, list) else given, memory)
    messages = items.messages_of([], own, memory, [])
    told = body.get("instructions")
    return [{"role": "system", "content": told}, *messages] if isinstance(told, str) else messages


def _anthropic(body: Mapping[str, Any]) -> list[Message]:
    system = anthropic_messages.read_system(body.get("system"))
    return [*system, *anthropic_messages.read_messages(body.get("messages"), [])]


def _as_text(body: Mapping[str, Any]) -> Message:
    said = {name: body[name] for name in ("messages", "prompt", "input") if name in body}
    return {"role": "user", "content": json.dumps(without_keys(said), ensure_ascii=False)}


_MESSAGES: dict[str, Callable[[Mapping[str, Any]], list[Message]]] = {
    "chat": _chat,
    "completions": _completions,
    "responses": _responses,
    "anthropic": _anthropic,
}
_TOOLS: dict[str, Callable[[Any], list[Message] | None]] = {
    "chat": read_tools,
    "completions": lambda value: None,
    "responses": lambda value: responses_tools.read_tools(value)[0],
    "anthropic": anthropic.tools.read_tools,
}
