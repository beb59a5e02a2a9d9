"""Text of episodes for tables: messages with short image placeholders, and the last reply.

Invariant: images are never decoded; an image stays the `data:` URL of the record.
"""

from __future__ import annotations

import re
from typing import Any

_BASE64 = re.compile(r"(data:[\w.+-]+/[\w.+-]+;base64,)[A-Za-z0-9+/=]+")


def text_of(content: Any) -> str:
    """Return a message's content as text, with `[image]` for an image, and its type for another part without text."""
    if not isinstance(content, list):
        return str(content or "")
    parts = (part if isinstance(part, dict) else {"text": part} for part in content)
    return " ".join(
        str(part.get("text") or "[" + str(part.get("type") or "part").removesuffix("_url") + "]") for part in parts
    )


def without_images(text: str) -> str:
    """Return a record's line without the base64 data of images, in which a text search finds accidental matches."""
    return _BASE64.sub(r"\1", text)


def image_characters(value: Any) -> int:
    """Return the total length of all images, stored as `data:` URLs, in a JSON value."""
    if isinstance(value, str):
        return len(value) if value.startswith("data:") else 0
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(image_characters, items))


def last_words(messages: list[Any]) -> str:
    """Return the text of the last reply, or its tool calls if the reply has no text."""
    replies = [message for message in messages if isinstance(message, dict) and message.get("role") == "assistant"]
    if not replies:
        return ""
    calls = [call.get("function") or {} for call in replies[-1].get("tool_calls") or () if isinstance(call, dict)]
    call_texts = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
    return text_of(replies[-1].get("content")).strip() or " ".join(call_texts)
