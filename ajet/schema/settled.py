"""What others sent as JSON, so that it can be kept.

Invariant: whatever came is a value that a file can hold and a reader walk through: no half of a letter (a lone
surrogate), nothing nested deeper than any reader goes. What is no such JSON is kept as its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ajet.schema.bounded_json import LONG_BYTES, TooManyNodesError, load_json, may_hold_surrogates

MAX_LEVELS = 100
"""Levels; what is nested deeper is kept as text."""


def parse_storable_json(data: bytes) -> Any:
    """A body as JSON; what is none, as text; the beginning of one that has too many values."""
    try:
        value = load_json(data)
        return make_storable(value) if may_hold_surrogates(data) else _require_shallow(value)
    except TooManyNodesError:
        return {"text": data[:LONG_BYTES].decode("utf-8", "replace")}
    except (ValueError, RecursionError):
        return {"text": data.decode("utf-8", "replace")}


def make_storable(value: Any) -> Any:
    """A value of JSON. Raises ValueError for one that is nested too deeply."""
    return repair_surrogates(_require_shallow(value))


def is_shallow(value: Any) -> bool:
    """Whether it has no more levels than DEEPEST."""
    layer = [value]
    for _ in range(MAX_LEVELS):
        layer = [child for each in layer for child in _list_children(each) if isinstance(child, (dict, list))]
        if not layer:
            return True
    return False


def repair_surrogates(value: Any) -> Any:
    """Halves of letters put together, or marked as unreadable."""
    text = json.dumps(value, ensure_ascii=False)
    repaired = repair_text(text)
    return value if repaired is text else json.loads(repaired)


def repair_text(text: str) -> str:
    """A text in whole letters; itself where nothing is halved."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _require_shallow(value: Any) -> Any:
    """Raises ValueError."""
    if not is_shallow(value):
        raise ValueError("it is nested too deeply")
    return value


def _list_children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
