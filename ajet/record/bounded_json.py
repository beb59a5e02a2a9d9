"""JSON of a record, possibly received from another person.

Invariant: a text that would need far more memory than its length, or is nested too deeply for the interpreter, raises
ValueError like any other damage.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.record_file import read_record_file

LONGEST_LINE = 256 << 20
"""Maximum bytes of a record's line."""
MOST_BYTES = 16 << 20
"""Maximum bytes of a file with one JSON value, such as status.json."""
MOST_VALUES = 16_000_000
"""Approximate maximum number of values in one text; each is a Python object."""
_CHEAP = 1 << 20


def parse_json(text: str | bytes) -> Any:
    if len(text) > _CHEAP:
        marks: Any = ("[", "{", ",") if isinstance(text, str) else (b"[", b"{", b",")
        if sum(text.count(mark) for mark in marks) > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values (limit)")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The value, if it is an object. Raises ValueError."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"found a {type(value).__name__}, expected a JSON object")
    return value


def read_json(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """The object that a file holds. Raises OSError, ValueError."""
    return parse_object(read_record_file(path, most))


def next_line(stream: BinaryIO) -> bytes:
    """Return the next line with the newline; an incomplete last line has none, and b"" means the end of the file.

    Raises:
        ValueError: the line is longer than LONGEST_LINE.
    """
    line = stream.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ValueError(f"longer than {LONGEST_LINE:,} bytes (limit)")
    return line
