"""Numbers that JSON has no word for, in what comes from outside.

Invariant: a value that enters ajet (a task's row, the body of a request) holds finite numbers only, so that whatever it
becomes part of can be written as JSON again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def non_finite(value: Any) -> tuple[str, float] | None:
    """The first number within `value` that is NaN or infinite, with its place (`scores.2`, "" for the value itself);
    None where all are finite. Values of other types are let be."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, (float, np.floating)):
            if not math.isfinite(each):
                return place, float(each)
        elif isinstance(each, Mapping):
            waiting += [
                (f"{place}.{name}" if place else str(name), part) for name, part in reversed(list(each.items()))
            ]
        elif isinstance(each, (list, tuple)):
            waiting += [(f"{place}.{n}" if place else str(n), each[n]) for n in reversed(range(len(each)))]
    return None
