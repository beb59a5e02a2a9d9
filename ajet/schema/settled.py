"""What others sent as JSON, so that it can be kept.

Invariant: whatever came is a value that a file can hold and a reader walk through: no half of a letter (a lone
surrogate), nothing nested deeper than any reader goes. What is no such JSON is kept as its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ajet.schema.bounded_json import LONG_BYTES, TooManyNodesError, load_json, may_hold_surrogates

DEEPEST = 100
"""Levels; what is nested deeper is kept as text."""


def settled_json(data: bytes) -> Any:
    """A body as JSON; what is none, as text; the beginning of one that has too many values."""
    try:
        value = load_json(data)
        return settled(value) if may_hold_surrogates(data) else _shallow(value)
    except TooManyNodesError:
        return {"text": data[:LONG_BYTES].decode("utf-8", "replace")}
    except (ValueError, RecursionError):
        return {"text": data.decode("utf-8", "replace")}


def settled(value: Any) -> Any:
    """A value of JSON. Raises ValueError for one that is nested too deeply."""
    return with_whole_letters(_shallow(value))


def is_shallow(value: Any) -> bool:
    """Whether it has no more levels than DEEPEST."""
    layer = [value]
    for _ in range(DEEPEST):
        layer = [child for each in layer for child in _inside(each) if isinstance(child, (dict, list))]
        if not layer:
            return True
    return False


def with_whole_letters(value: Any) -> Any:
    """Halves of letters put together, or marked as unreadable."""
    text = json.dumps(value, ensure_ascii=False)
    whole = whole_letters(text)
    return value if whole is text else json.loads(whole)


def whole_letters(text: str) -> str:
    """A text in whole letters; itself where nothing is halved."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _shallow(value: Any) -> Any:
    """Raises ValueError."""
    if not is_shallow(value):
        raise ValueError("it is nested too deeply")
    return value


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
