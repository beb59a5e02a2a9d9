"""Values of a table's row in the one form that JSON, and so every scorer, store and served client, has for them.

Invariant: what `to_plain` returns can be written as JSON; what has no form is refused with its place in the row.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from ajet.schema.errors import AjetError


class BadRow(AjetError, ValueError):
    """A row that makes no task; the message says why."""


def to_plain(value: Any, place: str = "") -> Any:
    """Return the value as JSON holds it. Raises BadRow."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        limit = sys.get_int_max_str_digits()
        if limit and abs(value) >= 10**limit:
            raise BadRow(f"{place}: an integer of more than {limit:,} digits; write it as text")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            raise BadRow(f"{place}: {name} is no JSON; expected a finite number or null")
        return value
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (Decimal, UUID)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): to_plain(part, f"{place}.{name}" if place else str(name)) for name, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_plain(part, f"{place}.{at}" if place else str(at)) for at, part in enumerate(value)]
    raise BadRow(f"{place}: JSON has no form for a {type(value).__name__}")
