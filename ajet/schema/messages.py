"""Extract the text of a message in any client's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def extract_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content, without images."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
