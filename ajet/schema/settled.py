"""Convert data of other programs into storable JSON.

Invariant: the result can be written to a file and traversed: no lone surrogates, no nesting beyond any reader's depth.
Input without a JSON form is stored as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ajet.schema.bounded_json import LONG_BYTES, TooManyNodesError, load_json, may_hold_surrogates

MAX_LEVELS = 100
"""Limit on nesting. Deeper values are stored as text."""


def parse_storable_json(data: bytes) -> Any:
    """Return a body as JSON, else as text. A body with too many values is cut to its first bytes."""
    try:
        value = load_json(data)
        return make_storable(value) if may_hold_surrogates(data) else _require_shallow(value)
    except TooManyNodesError:
        return {"text": data[:LONG_BYTES].decode("utf-8", "replace")}
    except (ValueError, RecursionError):
        return {"text": data.decode("utf-8", "replace")}


def make_storable(value: Any) -> Any:
    """Return the value as JSON data that a record can store. Raises ValueError if it is nested too deeply."""
    return repair_surrogates(_require_shallow(value))


def is_shallow(value: Any) -> bool:
    """Return True if a value has at most MAX_LEVELS levels."""
    layer = [value]
    for _ in range(MAX_LEVELS):
        layer = [child for each in layer for child in _list_children(each) if isinstance(child, (dict, list))]
        if not layer:
            return True
    return False


def repair_surrogates(value: Any) -> Any:
    """Return the value with surrogate halves joined, or marked as unreadable."""
    text = json.dumps(value, ensure_ascii=False)
    repaired = repair_text(text)
    return value if repaired is text else json.loads(repaired)


def repair_text(text: str) -> str:
    """Return the text without lone surrogates, or the same object if already clean."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _require_shallow(value: Any) -> Any:
    if not is_shallow(value):
        raise ValueError(f"nested too deeply (limit {MAX_LEVELS} levels)")
    return value


def _list_children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
