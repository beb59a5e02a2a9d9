"""Images in a user's message, of any dialect, as Chat Completions writes them.

Invariant: an image is kept, with the place where the client put it, until it is known who answers: a chat engine gets
it as it was meant, for a text model the whole request is refused by that place. Nothing is fetched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.gateway.dialects.fields import unsupported, wrong

BLOCKS = ("image_url", "input_image", "image")
"""The types of image blocks of Chat Completions, Responses and Messages."""
_DETAILS = ("auto", "low", "high", "original")


def image_part(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The block as a part of type `image_url`. Raises Refused for what is no image."""
    kind = block["type"]
    detail = block.get("detail")
    if kind == "image_url":
        told = block.get("image_url")
        url = told.get("url") if isinstance(told, Mapping) else None
        detail = told.get("detail") if isinstance(told, Mapping) else None
        where = f"{where}.image_url.url"
    elif kind == "input_image":
        if block.get("file_id") is not None:
            raise unsupported(f"{where}.file_id", "files are not kept here; send the image itself.")
        url, where = block.get("image_url"), f"{where}.image_url"
    else:
        url, where = _of_source(block.get("source"), f"{where}.source")
    if not isinstance(url, str) or not url.startswith(("https://", "http://", "data:image/")):
        raise wrong(where, "the URL of an image, or a data: URL of one")
    image: dict[str, Any] = {"url": url}
    if detail is not None:
        if detail not in _DETAILS:
            raise wrong(f"{where}.detail", "one of " + ", ".join(_DETAILS))
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def _of_source(source: Any, where: str) -> tuple[Any, str]:
    """Anthropic's: an URL or the bytes."""
    if not isinstance(source, Mapping):
        raise wrong(where, "an object with a 'type'")
    if source.get("type") == "url":
        return source.get("url"), f"{where}.url"
    if source.get("type") != "base64":
        raise unsupported(f"{where}.type", "only 'base64' and 'url' are known.")
    kind, data = source.get("media_type"), source.get("data")
    if not isinstance(kind, str) or not kind.startswith("image/") or not isinstance(data, str):
        raise wrong(where, "a media_type such as image/png, and data")
    return f"data:{kind};base64,{data}", f"{where}.data"
