"""Plain JSON from any workflow metadata and metrics.

Invariant: `dumps` never fails and always writes strict JSON. Numbers unknown to JSON become the strings "NaN",
"Infinity" and "-Infinity"; unknown objects become their `repr`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from pydantic import BaseModel


def dumps(value: Any) -> str:
    """Return any value as one line of strict JSON. Values unknown to JSON are converted as by `plain`."""
    return strict_json(value, separators=None)


def strict_json(value: Any, *, separators: tuple[str, str] | None = (",", ":")) -> str:
    """Return any value as strict JSON, by default without blanks. Values unknown to JSON are converted as by `plain`.

    Non-ASCII characters are escaped if a text contains lone surrogates, which no file can hold.
    """
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    except (TypeError, ValueError, RecursionError):
        value = plain(value)
        line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
    try:
        if not line.isascii():
            line.encode()
    except UnicodeEncodeError:
        line = json.dumps(value, allow_nan=False, separators=separators)
    return line


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as dicts with string keys, lists, strings, finite numbers, booleans and None.

    NaN and infinity become strings, unknown objects their `repr`, and values more than 50 levels deep a note.
    """
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return number if math.isfinite(number) else json.dumps(number)
    if depth > 50:
        return f"<nested too deeply: {type(value).__name__}>"
    if isinstance(value, np.generic):
        return plain(value.item(), depth + 1)
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), depth + 1)
    if isinstance(value, BaseModel):
        return plain(dict(value), depth + 1)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, AbstractSet):
        return sorted((plain(item, depth + 1) for item in value), key=repr)
    return repr(value)
