"""What an assistant message says in words: its content and its reasoning."""

from __future__ import annotations

from typing import Any


def texts_of(message: dict[str, Any]) -> list[str]:
    """The message's texts; content may be a string or a list of blocks."""
    texts = []
    for name in ("content", "reasoning_content"):
        value = message.get(name)
        blocks = value if isinstance(value, list) else [value]
        for block in blocks:
            text = block.get("text") if isinstance(block, dict) else block
            if isinstance(text, str) and text:
                texts.append(text)
    return texts
