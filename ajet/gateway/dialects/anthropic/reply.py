"""The parts of an answer in Anthropic's form: content blocks, stop reasons, usage.

Invariant: streamed and unstreamed answers consist of the same parts.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from ajet.gateway.reply import Reply
from ajet.gateway.request import Refused

ThinkingDisplay = Literal["shown", "omitted", "hidden"]
"""Display of thinking: the text, an empty block, or no block."""


def build_content(message: dict[str, Any], thinking: ThinkingDisplay, signature: str) -> list[dict[str, Any]]:
    """Return the content blocks of a reply's message: thinking, text, tool calls. Raises Refused.

    A tool call is refused if its arguments are no JSON object, which this protocol requires.
    """
    blocks: list[dict[str, Any]] = []
    thought = message.get("reasoning_content")
    if thought and thinking != "hidden":
        blocks.append({**thinking_block(thought if thinking == "shown" else ""), "signature": signature})
    if message.get("content"):
        blocks.append(text_block(message["content"]))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append({**tool_block(call["id"], function["name"]), "input": _parse_input(function)})
    return blocks


def thinking_block(thought: str) -> dict[str, Any]:
    """Return a content block of the type `thinking`. Its signature is added later."""
    return {"type": "thinking", "thinking": thought, "signature": ""}


def text_block(text: str) -> dict[str, Any]:
    """Return a content block of the type `text`."""
    return {"type": "text", "text": text}


def tool_block(call_id: str, name: str) -> dict[str, Any]:
    """Return a content block of the type `tool_use`. Its input is added later."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def build_stop(reply: Reply, room: int) -> dict[str, Any]:
    """Return stop_reason, stop_sequence and stop_details. `room` limits the tokens of prompt and reply together."""
    reason = "end_turn"
    if reply.finish == "tool_calls":
        reason = "tool_use"
    elif reply.finish == "length":
        is_context_full = (reply.prompt_tokens or 0) + (reply.completion_tokens or 0) >= room
        reason = "model_context_window_exceeded" if is_context_full else "max_tokens"
    elif reply.stopped is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": reply.stopped, "stop_details": None}


def build_usage(prompt_tokens: int | None, completion_tokens: int | None) -> dict[str, Any]:
    """Return the usage in Anthropic's form. Uncounted tokens are 0, since clients add these numbers up."""
    return {
        "input_tokens": prompt_tokens or 0,
        "output_tokens": completion_tokens or 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _parse_input(function: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool call as an object. Raises Refused (502) if the model's text is no JSON object."""
    try:
        value = json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(
            f"the model called the tool {function.get('name')!r} with arguments that are not a JSON object",
            status=502,
            code="invalid_tool_arguments",
        )
    return value
