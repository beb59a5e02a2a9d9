"""Parse JSON of a client with a bounded number of values, checked before any object is built.

Invariant: a document parsed by `load_json` has at most `MAX_NODES` keys and values, and no integer above `MAX_DIGITS`
digits, so parsing and traversal take bounded time and memory. For comparison, 57 MiB of `{}` take 3.5 GiB as objects,
and 57 MiB of long integers hold the interpreter's lock for 1.4 s. All servers and clients use this parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ajet.schema.errors import AjetError

MAX_NODES = 500_000
"""Limit on keys and values of a document, estimated by brackets, commas and colons outside of strings."""
MAX_DIGITS = 400
"""Limit on the digits of an integer. Doubles hold fewer digits, and other JSON parsers refuse longer integers."""
LONG_BYTES = 100_000
"""Bodies above this size are parsed on a thread, because parsing on the event loop would take over a millisecond."""
_MARKS = (b"[", b"{", b",", b":")
_CHUNK_BYTES = 256 << 10


class TooManyNodesError(AjetError, ValueError):
    """A document exceeds the reader's limit on keys and values."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"it has more than {limit:,} keys and values")


def parse_int(digits: str) -> int:
    """Return an integer of a JSON document, or raise ValueError if it has more than `MAX_DIGITS` digits.

    Python's time for parsing an integer grows with the square of its digits.
    """
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS:,} digits")
    return int(digits)


_DECODE = json.JSONDecoder(parse_int=parse_int).decode


def load_json(data: bytes | bytearray | str, decode: Callable[[str], Any] = _DECODE, *, limit: int = MAX_NODES) -> Any:
    """Parse a JSON document in any encoding of JSON, if it has at most `limit` keys and values.

    Args:
        decode: Parses the document's text once its size is checked.

    Raises:
        TooManyNodesError: The document has more keys and values.
        ValueError: The document is nested too deeply, or is not JSON.
    """
    if len(data) > limit:  # each node takes at least one byte
        _check_nodes(data if isinstance(data, (bytes, bytearray)) else data.encode("utf-8", "surrogatepass"), limit)
    try:
        return decode(data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check_nodes(data: bytes | bytearray, limit: int) -> None:
    """Raise TooManyNodesError if the document has more than `limit` keys and values, without parsing it.

    Counts the marks `[{,:` outside of strings, chunk by chunk.
    """
    encoding = json.detect_encoding(data)
    if encoding not in ("utf-8", "utf-8-sig"):
        data = data.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    # In pieces, between which other threads run. An upper bound first: marks in strings count as well.
    starts = range(0, len(data), _CHUNK_BYTES)
    if sum(data.count(mark, start, start + _CHUNK_BYTES) for start in starts for mark in _MARKS) <= limit:
        return
    nodes, is_in_string, carried_backslash = 0, False, b""
    for start in starts:
        chunk = carried_backslash + bytes(data[start : start + _CHUNK_BYTES])
        backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
        carried_backslash = b"\\" * (backslashes % 2)  # an odd backslash escapes the first byte of the next chunk
        chunk = chunk[: len(chunk) - len(carried_backslash)]
        # Without escaped backslashes and quotes, every second piece between quotes lies outside of strings.
        pieces = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[is_in_string::2])
        nodes += sum(map(outside.count, _MARKS))
        if nodes > limit:
            raise TooManyNodesError(limit)
        is_in_string ^= len(pieces) % 2 == 0  # an odd number of quotes


def may_hold_surrogates(data: bytes | bytearray) -> bool:
    """Return False if no text of the document can contain a lone surrogate, as an escape or as bytes."""
    if json.detect_encoding(data) not in ("utf-8", "utf-8-sig"):
        return True
    starts = range(0, len(data), _CHUNK_BYTES)
    marks = (b"\\ud", b"\\uD", b"\xed")  # escapes, and the first UTF-8 byte of a surrogate
    return any(data.find(mark, start, start + _CHUNK_BYTES + 2) >= 0 for start in starts for mark in marks)
