"""JSON of a client, bounded by its number of values before any object is built.

Invariant: what `load_json` builds has at most `MAX_NODES` keys and values, none of them an integer of more than
`MAX_DIGITS` digits, so that parsing and walking it take a bounded time and memory: 57 MiB of `{}` are 3.5 GiB of
objects, 57 MiB of long integers hold the interpreter's lock for 1.4 s. All servers and clients of servers parse so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ajet.schema.errors import AjetError

MAX_NODES = 500_000
"""Keys and values of one document, about: its brackets, commas and colons outside of strings."""
MAX_DIGITS = 400
"""Digits of an integer: more than a double holds; other readers of JSON read no longer one."""
LONG_BYTES = 100_000
"""A body that is longer is parsed and read on a thread: on the loop it would take a millisecond and more."""
_MARKS = (b"[", b"{", b",", b":")
_CHUNK_BYTES = 256 << 10


class TooManyNodesError(AjetError, ValueError):
    """A document has more keys and values than its reader takes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it has more than {most:,} keys and values")


def parse_int(digits: str) -> int:
    """Raises ValueError for an integer that takes long to read and to write; a number of a document's decoder."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS:,} digits")
    return int(digits)


_DECODE = json.JSONDecoder(parse_int=parse_int).decode


def load_json(data: bytes | bytearray | str, decode: Callable[[str], Any] = _DECODE, *, most: int = MAX_NODES) -> Any:
    """Parse a document of at most `most` keys and values, in any encoding of JSON, with `decode`.

    Raises:
        TooManyNodesError: The document has more keys and values.
        ValueError: The document is nested too deeply, or is no JSON.
    """
    if len(data) > most:  # a shorter one cannot have more
        _check_nodes(data if isinstance(data, (bytes, bytearray)) else data.encode("utf-8", "surrogatepass"), most)
    try:
        return decode(data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _check_nodes(data: bytes | bytearray, most: int) -> None:
    """Raises TooManyNodesError."""
    encoding = json.detect_encoding(data)
    if encoding not in ("utf-8", "utf-8-sig"):
        data = data.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    # In pieces, between which other threads run. An upper bound first: marks in strings count as well.
    starts = range(0, len(data), _CHUNK_BYTES)
    if sum(data.count(mark, start, start + _CHUNK_BYTES) for start in starts for mark in _MARKS) <= most:
        return
    nodes, inside, carried = 0, False, b""
    for start in starts:
        chunk = carried + bytes(data[start : start + _CHUNK_BYTES])
        backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
        carried = b"\\" * (backslashes % 2)  # it escapes what comes next
        chunk = chunk[: len(chunk) - len(carried)]
        pieces = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[inside::2])
        nodes += sum(map(outside.count, _MARKS))
        if nodes > most:
            raise TooManyNodesError(most)
        inside ^= len(pieces) % 2 == 0


def may_hold_surrogates(data: bytes | bytearray) -> bool:
    """False if no text of the document can hold half of a letter: neither an escape nor its bytes are in it."""
    if json.detect_encoding(data) not in ("utf-8", "utf-8-sig"):
        return True
    starts = range(0, len(data), _CHUNK_BYTES)
    marks = (b"\\ud", b"\\uD", b"\xed")
    return any(data.find(mark, start, start + _CHUNK_BYTES + 2) >= 0 for start in starts for mark in marks)
