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
    """Return a request's body as JSON data, or `{"text": ...}` if it is not JSON or is nested too deeply.

    A body with too many values becomes a text of its first bytes.
    """
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
    """Return True if a JSON value is nested at most MAX_LEVELS deep."""
    layer = [value]
    for _ in range(MAX_LEVELS):
        layer = [child for parent in layer for child in _list_children(parent) if isinstance(child, (dict, list))]
        if not layer:
            return True
    return False


def repair_surrogates(value: Any) -> Any:
    """Return the JSON value with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    text = json.dumps(value, ensure_ascii=False)
    repaired = repair_text(text)
    return value if repaired is text else json.loads(repaired)


def repair_text(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD.

    Returns the same object if the text has none.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _require_shallow(value: Any) -> Any:
    """Return the value, or raise ValueError if it is nested too deeply to be stored."""
    if not is_shallow(value):
        raise ValueError(f"nested too deeply (limit {MAX_LEVELS} levels)")
    return value


def _list_children(value: Any) -> Iterable[Any]:
    """Return the values inside a dict or list; none for any other value."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
