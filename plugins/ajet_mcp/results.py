"""What a model is shown of a tool's reply: text, cut to so many tokens with a note, and images as parts.

Invariant: nothing is left out without a note in its place, and `whole` is the text before it was cut.
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
"""How many tokens a text is for the model."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A tool's result as a model is shown it."""

    text: str
    whole: str
    images: tuple[str, ...] = ()
    """As `data:` URLs."""
    error: ToolError = ""

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """The result as a message's content: text alone, or parts where there are images."""
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
    """What is shown of `reply`, at most `limit` tokens of its text. `images`: whether the model can see any; else a
    note stands for each. `condensed`: a text in place of a whole one, or None."""
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
    whole = "\n".join(texts)
    text = await condensed(whole) if condensed is not None and not reply.failed else None
    if text is not None and len(text) == len(whole):
        text += " "  # the record takes a text of the whole's length for the whole
    return Shown(
        await shortened(whole if text is None else text, count, limit),
        whole,
        tuple(urls),
        "tool" if reply.failed else "",
    )


def _data_url(block: Mapping[str, Any]) -> str | None:
    """Return an image block as a `data:` URL; None for a block that no request to a model could carry."""
    kind, data = block.get("mimeType") or "image/png", block.get("data")
    if block.get("type") != "image" or not isinstance(data, str):
        return None
    data = "".join(data.split())  # MIME encoders break it into lines
    try:
        readable = bool(base64.b64decode(data, validate=True))
    except ValueError:
        return None
    return f"data:{kind};base64,{data}" if readable and _IMAGE_KIND.fullmatch(str(kind)) else None


def has_image(reply: Reply) -> bool:
    """Whether one is in it."""
    return any(block.get("type") == "image" for block in reply.content)


async def shortened(text: str, count: CountTokens, limit: int | None) -> str:
    """The beginning of `text` in at most `limit` tokens, with a note of how much it is of how many."""
    if limit is None or len(text.encode("utf-8", "replace")) <= limit:  # no token is less than a byte
        return text
    total = await count(text)
    if total <= limit:
        return text
    length, kept = len(text), total
    while kept > limit and length:
        length = min(length - 1, int(length * limit / kept))
        kept = await count(text[:length])
    return f"{text[:length]}\n[cut: the first {kept} of {total} tokens are shown]"


def _format_block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return "" if text is None else str(text)
    if kind == "resource_link":
        return f"[{block.get('name', 'a resource')}: {block.get('uri', '')}]"
    inner = block.get("resource")
    if kind == "resource" and isinstance(inner, Mapping):
        if isinstance(inner.get("text"), str):
            return str(inner["text"])
        return f"[a file that is no text: {inner.get('uri', '')} ({inner.get('mimeType') or 'unknown type'})]"
    return f"[{kind} ({block.get('mimeType') or 'unknown type'}), which is not shown]"
