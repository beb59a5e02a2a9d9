"""Converts values of table rows to JSON values, as used by scorers, stores and clients.

Invariant: the result of `to_plain` can be written as JSON; a value without a JSON form is refused with its place in the
row.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from ajet.schema.errors import AjetError


class BadRowError(AjetError, ValueError):
    """A row that makes no task; the message has the reason.

    `line`: line number within the text, if known. `do`: specific advice, if any.
    """

    def __init__(self, message: str, line: int | None = None, *, do: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.do = do


def build_kind_error(row: object) -> BadRowError:
    """Return the error of a row that is a JSON value, but not an object."""
    return BadRowError(f"the row is a JSON {type(row).__name__}, not an object")


def read_json(text: str) -> Any:
    """Return the value of a JSON text from a user. Raises BadRowError for a lone surrogate, which UTF-8 cannot hold."""
    value = decode_json(text)
    try:
        if "\\ud" in text.lower():  # the escape of a surrogate: only then is the value encoded for a check
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRowError("it contains half of a surrogate pair, which is not valid text") from None
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    return value


def decode_json(text: str) -> Any:
    """Return the value of a JSON text, including lone surrogates. Raises BadRowError with the reason."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRowError(f"it is not valid JSON ({error.msg} at column {error.colno})", error.lineno) from None
    except RecursionError:
        raise BadRowError("nested too deeply") from None
    except ValueError:  # Python reads no integer beyond this limit
        limit = sys.get_int_max_str_digits()
        long_number = re.search(rf"\d{{{limit + 1}}}", text)
        line = text.count("\n", 0, long_number.start()) + 1 if long_number is not None else None
        raise BadRowError(
            f"the JSON contains an integer of more than {limit:,} digits; write the number as a string", line
        ) from None


def to_plain(value: Any, location: str = "") -> Any:
    """Return the value with all parts as JSON values: dates as ISO text, bytes as base64, arrays as lists.

    Args:
        location: Path of the value within its row, for errors.

    Raises:
        BadRowError: a part has no JSON form, such as NaN.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_text(value, location)
        return value
    if isinstance(value, int):
        limit = sys.get_int_max_str_digits()
        if limit and abs(value) >= 10**limit:
            raise BadRowError(f"{location}: an integer of more than {limit:,} digits; write the number as a string")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            raise BadRowError(f"{location}: {name} is not valid JSON; expected a finite number or null")
        return value
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal) and not value.is_finite():
        raise BadRowError(f"{location}: {value} is not valid JSON; expected a finite number or null")
    if isinstance(value, (Decimal, UUID)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        names = [str(name) for name in value]
        if len(set(names)) < len(names):
            raise BadRowError(f"{location}: two keys are equal when written as strings")
        _check_text("".join(names), location)
        return {
            str(name): to_plain(item, f"{location}.{name}" if location else str(name)) for name, item in value.items()
        }
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_plain(item, f"{location}.{index}" if location else str(index)) for index, item in enumerate(value)]
    raise BadRowError(f"{location}: JSON cannot represent a {type(value).__name__}")


def check_json(value: Any, location: str = "") -> None:
    """Raise BadRowError for a value that JSON cannot represent unchanged. `location`: the value's path in its row."""
    try:
        _check_value(value, location)
    except RecursionError:
        raise BadRowError(f"{location or 'it'}: nested too deeply") from None


def _check_value(value: Any, location: str) -> None:
    """Raise BadRowError, with the value's location in its row, unless JSON can represent the value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise BadRowError(f"{location}: the key {name!r:.80} is not a string")
            _check_text(name, location)
            _check_value(item, f"{location}.{name}" if location else name)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_value(item, f"{location}.{index}" if location else str(index))
    elif value is None or isinstance(value, (str, bool, int, float)):
        to_plain(value, location)
    else:
        raise BadRowError(f"{location}: JSON cannot represent a {type(value).__name__}")


def _check_text(text: str, location: str) -> None:
    """Raise BadRowError for a text with a lone surrogate, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRowError(f"{location}: half of a surrogate pair, which is not valid text") from None
