"""`system` and `messages` of Messages in the shape of Chat Completions.

Invariant: documents are refused, not dropped; a user's message with images has a list of parts, and the images' places
are returned. Two parts are left out: `redacted_thinking`, without readable text, and the billing line of clients.
"""

from __future__ import annotations

import json
from typing import Any

from ajet.gateway.dialects.fields import (
    build_parts,
    check_text,
    invalid_value,
    read_boolean,
    read_image,
    unsupported_value,
)
from ajet.gateway.request import Refused

_BILLING = "x-anthropic-billing-header:"
"""Beginning of the billing block in `system`. The block differs from request to request."""


def read_system(value: Any) -> list[dict[str, Any]]:
    """Return `system` as a message in a list, or an empty list if `system` is absent or empty."""
    if value is None:
        return []
    text = _read_text(value, "system", skip=_BILLING)
    return [{"role": "system", "content": text}] if text else []


def read_messages(value: Any, images: list[str]) -> list[dict[str, Any]]:
    """Return the request's messages in the form of Chat Completions. A turn with tool results gives several.

    Args:
        images: The places of images are added to this list.
    """
    if not isinstance(value, list) or not value:
        raise invalid_value("messages", "a non-empty list of messages")
    messages_read: list[dict[str, Any]] = []
    for index, message in enumerate(value):
        location = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid_value(location, "an object")
        role, content = message.get("role"), message.get("content")
        if role == "user":
            messages_read += _read_user(content, f"{location}.content", images)
        elif role == "assistant":
            messages_read.append(_read_assistant(content, f"{location}.content"))
        elif role == "system":
            messages_read.append({"role": "system", "content": _read_text(content, f"{location}.content")})
        else:
            raise invalid_value(f"{location}.role", "'user', 'assistant' or 'system'")
    return messages_read


def _list_blocks(content: Any, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return a content's blocks as (block, place in the request). A string is one block of text. Raises Refused."""
    if isinstance(content, str):
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise invalid_value(where, "a string or a list of content blocks")
    for index, block in enumerate(content):
        if not isinstance(block, dict):
            raise invalid_value(f"{where}[{index}]", "a block")
    return [(block, f"{where}[{index}]") for index, block in enumerate(content)]


def _build_misplaced(block: dict[str, Any], where: str, expected: str) -> Refused:
    """Return the refusal of a block that is not allowed at its place.

    A block of a known type is misplaced, any other type is unsupported.
    """
    kind = block.get("type")
    if not isinstance(kind, str) or kind in ("text", "tool_use", "tool_result", "thinking", "redacted_thinking"):
        return invalid_value(f"{where}.type", expected)
    return unsupported_value(f"{where}.type", f"this model takes text only, not {kind!r} blocks.")


def _read_string(block: dict[str, Any], name: str, where: str) -> str:
    """Return a string field of a block. Raises Refused."""
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid_value(f"{where}.{name}", "a string")
    return value


def _read_text(content: Any, where: str, *, skip: str | None = None) -> str:
    """Return the joined text of a content that may have text blocks only. Raises Refused.

    Args:
        skip: Blocks that begin with this text are left out.
    """
    parts: list[str] = []
    for block, location in _list_blocks(content, where):
        if block.get("type") != "text":
            raise _build_misplaced(block, location, "'text'")
        text = _read_string(block, "text", location)
        if skip is None or not text.startswith(skip):
            parts.append(text)
    return "".join(parts)


def _read_user(content: Any, where: str, images: list[str]) -> list[dict[str, Any]]:
    """Return a user's turn as messages: one for each tool result, one for the text and images between two results."""
    messages: list[dict[str, Any]] = []
    parts: list[Any] = []

    def add_message() -> None:
        """Add the collected text and images as one message, and begin to collect anew."""
        has_images = any(not isinstance(part, str) for part in parts)
        messages.append({"role": "user", "content": build_parts(parts) if has_images else "".join(parts)})
        parts.clear()

    for block, location in _list_blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            parts.append(_read_string(block, "text", location))
        elif kind == "tool_result":
            if parts:
                add_message()
            messages.append(_read_tool_result(block, location))
        elif kind == "image":
            images.append(f"{location}.type")
            parts.append(read_image(block, location))
        else:
            raise _build_misplaced(block, location, "'text', 'image' or 'tool_result' in a message of the role 'user'")
    if parts or not messages:
        add_message()
    return messages


def _read_tool_result(block: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a tool's result as a message. Chat Completions has no error flag, so the text of an error begins with
    "Error".
    """
    content = block.get("content")
    text = "" if content is None else _read_text(content, f"{where}.content")
    if read_boolean(block, "is_error", False, where) and not text.lower().startswith("error"):
        text = f"Error: {text}" if text else "Error"
    return {
        "role": "tool",
        "tool_call_id": check_text(block.get("tool_use_id"), f"{where}.tool_use_id"),
        "content": text,
    }


def _read_assistant(content: Any, where: str) -> dict[str, Any]:
    """Return an assistant's turn as one message with text, reasoning and tool calls."""
    parts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, location in _list_blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            parts.append(_read_string(block, "text", location))
        elif kind == "thinking":
            thoughts.append(_read_string(block, "thinking", location))
        elif kind == "tool_use":
            calls.append(_read_tool_use(block, location))
        elif kind != "redacted_thinking":
            raise _build_misplaced(
                block, location, "'text', 'thinking' or 'tool_use' in a message of the role 'assistant'"
            )
    message: dict[str, Any] = {"role": "assistant", "content": "".join(parts)}
    if thought := "".join(thoughts):
        message["reasoning_content"] = thought
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = calls
    return message


def _read_tool_use(block: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a tool call in the form of Chat Completions: its input becomes JSON text. Raises Refused."""
    tool_input = block.get("input")
    if not isinstance(tool_input, dict):
        raise invalid_value(f"{where}.input", "an object")
    function = {
        "name": check_text(block.get("name"), f"{where}.name"),
        "arguments": json.dumps(tool_input, ensure_ascii=False),
    }
    return {"id": check_text(block.get("id"), f"{where}.id"), "type": "function", "function": function}
