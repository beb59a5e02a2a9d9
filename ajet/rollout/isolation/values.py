"""Values that cross to another process as JSON, and come out as they went in.

Invariant: what arrives is read and never executed or unpickled. Beside what JSON has, tuples, sets, bytes, numbers that
are not finite, dates, paths and keys that are no text keep their type, by an object with one key that begins with `$`.
Models and numpy's values become what the record makes of them; anything else its `repr`, or an error if that is wanted.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from pathlib import Path, PurePath
from typing import Any, NoReturn

import numpy as np
from pydantic import BaseModel

DEEPEST = 50
"""Levels of lists and mappings; what lies deeper becomes a text, as in the record."""


def encoded(value: Any, *, exact: bool = False) -> bytes:
    """The value as bytes of JSON. exact: raises TypeError for what would become its `repr`. Raises ValueError for a
    number that is too long to be written."""
    tree = _plain(value, 0, _refused if exact else repr)
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> Any:
    """The value that those bytes encode. Raises ValueError for any others."""
    try:
        return _value(json.loads(text.decode("utf-8", "surrogatepass"), parse_constant=_no_number))
    except (TypeError, OverflowError, RecursionError) as problem:
        raise ValueError(f"no value: {problem}") from problem


def _plain(value: Any, depth: int, other: Callable[[Any], str]) -> Any:
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(float(value))}
    if depth > DEEPEST:
        return f"<nested too deeply: {type(value).__name__}>"
    if isinstance(value, np.generic | np.ndarray):
        inner = value.tolist()
        return other(value) if isinstance(inner, np.generic) else _plain(inner, depth, other)
    if isinstance(value, BaseModel):
        return _plain(dict(value), depth, other)
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return {key: _plain(item, depth + 1, other) for key, item in value.items()}
        return {
            "$map": [[_plain(key, depth + 1, other), _plain(item, depth + 1, other)] for key, item in value.items()]
        }
    if isinstance(value, (list, tuple, AbstractSet)):
        items = [_plain(item, depth + 1, other) for item in value]
        return items if isinstance(value, list) else {_name_of(value): items}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    for name, kind in (("$datetime", datetime), ("$date", date), ("$time", time)):
        if isinstance(value, kind):
            return {name: value.isoformat()}
    return {"$path": str(value)} if isinstance(value, PurePath) else other(value)


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "$float": float,
    "$map": lambda rows: {_key(key): _value(item) for key, item in rows},
    "$tuple": lambda items: tuple(map(_value, items)),
    "$set": lambda items: set(map(_key, items)),
    "$frozenset": lambda items: frozenset(map(_key, items)),
    "$bytes": base64.b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$path": Path,
}


def _value(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_value(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((name, inner),) = tree.items()
        if name.startswith("$"):
            if name not in _KINDS:
                raise ValueError(f"no kind of value: {name[:40]}")
            return _KINDS[name](inner)
    return {key: _value(item) for key, item in tree.items()}


def _key(tree: Any) -> Any:
    """A model that was one has become a dictionary, which can be none."""
    value = _value(tree)
    return str(value) if isinstance(value, (dict, list)) else value


def _name_of(items: Any) -> str:
    return "$tuple" if isinstance(items, tuple) else "$set" if isinstance(items, set) else "$frozenset"


def _refused(value: Any) -> NoReturn:
    raise TypeError(f"a {type(value).__qualname__}, which is no data")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
