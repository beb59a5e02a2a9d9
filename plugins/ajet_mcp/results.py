"""Converts a tool's reply to what the model sees: text cut to a token limit, and images.

Invariant: every omission leaves a note in its place. `full_text` is the text before cutting.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.schema.tool_use import ToolError
from ajet_mcp.contract import Reply

_IMAGE_KIND = re.compile(r"image/[\w.+-]+")
CountTokens = Callable[[str], Awaitable[int]]
"""Counts the tokens of a text for the model."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A tool result as the model sees it."""

    text: str
    full_text: str
    images: tuple[str, ...] = ()
    """The result's images as `data:` URLs."""
    error: ToolError = ""

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """The content of the tool message: a text, or a list of parts if there are images."""
        if not self.images:
            return self.text
        parts: list[dict[str, Any]] = [{"type": "text", "text": self.text}] if self.text else []
        return parts + [{"type": "image_url", "image_url": {"url": url}} for url in self.images]


async def shown(
    reply: Reply,
    count: CountTokens,
    limit: int | None,
    *,
    images: bool = True,
    condensed: Callable[[str], Awaitable[str | None]] | None = None,
) -> Shown:
    """Convert a tool's reply to the form that the model sees.

    Args:
        count: returns the number of tokens of a text.
        limit: largest number of tokens of text; None for no limit.
        images: True if the model can see images. Otherwise a note replaces each image.
        condensed: returns a replacement for the complete text, or None to keep it.
    """
    texts: list[str] = []
    urls: list[str] = []
    for block in reply.content:
        url = _data_url(block) if images else None
        if url is not None:
            urls.append(url)
        else:
            texts.append(_format_block(block))
    if not any(texts) and not urls and reply.structured is not None:
        texts = [json.dumps(reply.structured, ensure_ascii=False)]
    full_text = "\n".join(texts)
    text = await condensed(full_text) if condensed is not None and not reply.failed else None
    if text is not None and len(text) == len(full_text):
        text += " "  # the record treats a text of the full length as uncut
    return Shown(
        await shortened(full_text if text is None else text, count, limit),
        full_text,
        tuple(urls),
        "tool" if reply.failed else "",
    )


def _data_url(block: Mapping[str, Any]) -> str | None:
    """Return an image block as a `data:` URL, or None if a request cannot carry the block."""
    kind, data = block.get("mimeType") or "image/png", block.get("data")
    if block.get("type") != "image" or not isinstance(data, str):
        return None
    data = "".join(data.split())  # MIME encoders break base64 into lines
    try:
        is_valid = bool(base64.b64decode(data, validate=True))
    except ValueError:
        return None
    return f"data:{kind};base64,{data}" if is_valid and _IMAGE_KIND.fullmatch(str(kind)) else None


def has_image(reply: Reply) -> bool:
    """Return True if the reply contains an image."""
    return any(block.get("type") == "image" for block in reply.content)


async def shortened(text: str, count: CountTokens, limit: int | None) -> str:
    """Cut `text` to at most `limit` tokens and append a note with both token counts.

    Args:
        count: returns the number of tokens of a text.
        limit: None returns the text unchanged.
    """
    if limit is None or len(text.encode("utf-8", "replace")) <= limit:  # a token has at least one byte
        return text
    total = await count(text)
    if total <= limit:
        return text
    length, tokens = len(text), total
    # Each round estimates the cut from the tokens per character of the round before.
    while tokens > limit and length:
        length = min(length - 1, int(length * limit / tokens))
        tokens = await count(text[:length])
    return f"{text[:length]}\n[cut: the first {tokens} of {total} tokens are shown]"


def _format_block(block: Mapping[str, Any]) -> str:
    """Return a content block as text: its text, the text of an embedded resource, or a note in brackets."""
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return "" if text is None else str(text)
    if kind == "resource_link":
        return f"[{block.get('name', 'a resource')}: {block.get('uri', '')}]"
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, Mapping):
        if isinstance(resource.get("text"), str):
            return str(resource["text"])
        return f"[a file that is no text: {resource.get('uri', '')} ({resource.get('mimeType') or 'unknown type'})]"
    return f"[{kind} ({block.get('mimeType') or 'unknown type'}), which is not shown]"
