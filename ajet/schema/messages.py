"""What a message says, in whatever form its client wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def extract_text(message: Mapping[str, Any]) -> str:
    """The text of its content, without its images."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
