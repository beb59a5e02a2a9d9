"""Messages between the rollout and a worker over a byte stream, and the encoding of message values.

The stream is a socket here. A pipe or the standard input and output of a container would work as well. Invariants: a
message is one frame, whose size is checked before the frame is stored. The head of the frame holds the attempt id and
the kind; the body is JSON. Received bytes are parsed, never executed or unpickled. Values without a JSON form (tuples,
sets, bytes, non-finite numbers, dates, paths, non-string keys) keep their type: each is an object with one key,
starting with `$`. Models and numpy values are encoded as in the record. Any other object becomes its `repr`, or raises
TypeError.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from pathlib import Path, PurePath
from typing import Any, NamedTuple, NoReturn

import numpy as np
from pydantic import BaseModel

from ajet.schema.frames import FrameError, FrameReader, pack_frame, send_all

MAX_MESSAGE_BYTES = 1 << 28
"""Maximum bytes of one message. A longer output fails the episode."""
MAX_DEPTH = 50
"""Maximum levels of lists and mappings. Deeper values become text, as in the record."""
_READ_BYTES = 1 << 16


class Message(NamedTuple):
    """A message of either side."""

    about: int
    """Id of the attempt, or 0 for a message that concerns no attempt."""
    kind: str
    body: Any


class MessageChannel:
    """One end of a channel. The caller closes the descriptors. One thread may read and one may write at a time."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._frames = FrameReader(MAX_MESSAGE_BYTES)

    def send(self, attempt_number: int, kind: str, body: bytes) -> None:
        """Send a message with a body from `encode_value`. Raises OSError when the other end is gone.

        Args:
            attempt_number: Id of the attempt. 0: no attempt.
        """
        send_all(self._write_fd, pack_frame({"about": attempt_number, "kind": kind}, body))

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            EOFError, OSError: The other end is gone.
            ValueError: The stream holds something else.
        """
        while (frame := self._frames.take_frame()) is None:
            received = os.read(self._read_fd, _READ_BYTES)
            if not received:
                raise EOFError
            self._frames.feed(received)
        head, blobs = frame
        about, kind = head.get("about"), head.get("kind")
        if type(about) is not int or not isinstance(kind, str) or len(blobs) != 1:
            raise FrameError("no message")
        return Message(about, kind, decode_value(blobs[0]))


def encode_value(value: Any, *, exact: bool = False) -> bytes:
    """Return the value as bytes of JSON for `decode_value`.

    Args:
        exact: True to refuse objects without a JSON form. False encodes them as their `repr`.

    Raises:
        TypeError: `exact` is set, and an object would become its `repr`.
        ValueError: An integer has more digits than Python writes.
    """
    tree = _to_json(value, 0, _refuse_object if exact else repr)
    return json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decode_value(text: bytes) -> Any:
    """Return the value written by `encode_value`. Raises ValueError for any other bytes."""
    try:
        return _from_json(json.loads(text.decode("utf-8", "surrogatepass"), parse_constant=_refuse_constant))
    except (TypeError, OverflowError, RecursionError) as problem:
        raise ValueError(f"not a value that ajet encoded: {problem}") from problem


def _to_json(value: Any, depth: int, encode_object: Callable[[Any], str]) -> Any:
    """Return a JSON value, in which each type without a JSON form is an object with one key `$…`."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(float(value))}
    if depth > MAX_DEPTH:
        return f"<nested too deeply: {type(value).__name__}>"
    if isinstance(value, np.generic | np.ndarray):
        inner = value.tolist()
        return encode_object(value) if isinstance(inner, np.generic) else _to_json(inner, depth, encode_object)
    if isinstance(value, BaseModel):
        return _to_json(dict(value), depth, encode_object)
    if isinstance(value, Mapping):
        # A mapping with a single key `$…` would be read as an encoded type, so it is written as `$map`.
        if all(type(key) is str for key in value) and not (len(value) == 1 and next(iter(value)).startswith("$")):
            return {key: _to_json(element, depth + 1, encode_object) for key, element in value.items()}
        rows = [
            [_to_json(key, depth + 1, encode_object), _to_json(element, depth + 1, encode_object)]
            for key, element in value.items()
        ]
        return {"$map": rows}
    if isinstance(value, (list, tuple, AbstractSet)):
        items = [_to_json(element, depth + 1, encode_object) for element in value]
        if isinstance(value, list):
            return items
        return {"$tuple" if isinstance(value, tuple) else "$set" if isinstance(value, set) else "$frozenset": items}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    for name, kind in (("$datetime", datetime), ("$date", date), ("$time", time)):
        if isinstance(value, kind):
            return {name: value.isoformat()}
    return {"$path": str(value)} if isinstance(value, PurePath) else encode_object(value)


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "$float": float,
    "$map": lambda rows: {_make_key(key): _from_json(item) for key, item in rows},
    "$tuple": lambda items: tuple(map(_from_json, items)),
    "$set": lambda items: set(map(_make_key, items)),
    "$frozenset": lambda items: frozenset(map(_make_key, items)),
    "$bytes": base64.b64decode,
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$path": Path,
}


def _from_json(tree: Any) -> Any:
    """Return the value that `_to_json` encoded."""
    if isinstance(tree, list):
        return [_from_json(element) for element in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((name, inner),) = tree.items()
        if name.startswith("$"):
            if name not in _DECODERS:
                raise ValueError(f"{name[:40]} is not a known kind of value")
            return _DECODERS[name](inner)
    return {key: _from_json(element) for key, element in tree.items()}


def _make_key(tree: Any) -> Any:
    """Return a hashable key of a mapping or member of a set. A model there became a dictionary, which has no hash."""
    value = _from_json(tree)
    return str(value) if isinstance(value, (dict, list)) else value


def _refuse_object(value: Any) -> NoReturn:
    """Raise TypeError for an object without a JSON form. `repr` is used in its place where a text suffices."""
    raise TypeError(f"an object of the class {type(value).__qualname__}, which cannot be encoded as JSON")


def _refuse_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which `json.loads` accepts although they are no JSON numbers."""
    raise ValueError(f"{text} is not a JSON number")
