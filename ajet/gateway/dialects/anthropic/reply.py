"""A reply's parts as Anthropic names them: content blocks, stop reasons, usage.

Invariant: whole and streamed replies are made of the same parts.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from ajet.gateway.turn import Refused, Turn

Shown = Literal["shown", "omitted", "hidden"]
"""Thinking with its text, as an empty block, or not at all."""


def content_of(message: dict[str, Any], thinking: Shown, signature: str) -> list[dict[str, Any]]:
    """The blocks of a message. Raises Refused where a call's arguments are no object, which has no form here."""
    blocks: list[dict[str, Any]] = []
    thought = message.get("reasoning_content")
    if thought and thinking != "hidden":
        blocks.append({**thinking_block(thought if thinking == "shown" else ""), "signature": signature})
    if message.get("content"):
        blocks.append(text_block(message["content"]))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append({**tool_block(call["id"], function["name"]), "input": _input(function)})
    return blocks


def thinking_block(thought: str) -> dict[str, Any]:
    """A block of thinking, not signed yet."""
    return {"type": "thinking", "thinking": thought, "signature": ""}


def text_block(said: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": said}


def tool_block(call_id: str, name: str) -> dict[str, Any]:
    """A call without its input."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def stop_of(turn: Turn, room: int) -> dict[str, Any]:
    """stop_reason and its kin."""
    reason = "end_turn"
    if turn.finish == "tool_calls":
        reason = "tool_use"
    elif turn.finish == "length":
        full = (turn.prompt_tokens or 0) + (turn.completion_tokens or 0) >= room
        reason = "model_context_window_exceeded" if full else "max_tokens"
    elif turn.stopped is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": turn.stopped, "stop_details": None}


def usage_of(prompt_tokens: int | None, completion_tokens: int | None) -> dict[str, Any]:
    """Tokens as captured; 0 where a server did not count them, since clients add these numbers up."""
    return {
        "input_tokens": prompt_tokens or 0,
        "output_tokens": completion_tokens or 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _input(function: dict[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(
            f"the model called {function.get('name')!r} with arguments that are no JSON object",
            status=502,
            code="invalid_tool_arguments",
        )
    return value
