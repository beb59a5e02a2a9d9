"""The scorer `numeric`: is the number right, within a tolerance, in its unit?

Invariant: an answer states one number; what has yet to be computed, and several different ones, are none.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Literal

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.task_judge.extraction import hash_answer, text_of
from ajet.task_judge.math_number import Number, in_unit_of, number
from ajet.task_judge.math_text import plain

LONGEST = 10_000
"""Characters of an answer that are read."""
_IN_TEXT = re.compile(
    r"(?<![\w.,/^])[$€£¥₹]?\s?[+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?(?:\s?(?:%|[A-Za-z°µΩ]+))?(?![\d^/]|[.,]\d)"
)
_DENIED = re.compile(r"\b(?:not|never)\b|n['’]t\b", re.IGNORECASE)


def numeric(
    model_answer: str,
    ground_truth: Any,
    tolerance: float = 0.0,
    relative: float = 0.0,
    units: Literal["convert", "ignore", "required"] = "convert",
) -> Verdict:
    """1 where the answer is within `tolerance`, or within the share `relative` of the truth. units: `convert` (another
    unit of the same kind is converted, one may be left out, but for percent), `required` (an answer without the
    truth's unit is wrong), `ignore`. Raises JudgeFailure where the truth is no number."""
    if units not in ("convert", "ignore", "required"):
        raise JudgeFailure(f"numeric: units is {units!r}; there are convert, ignore, required")
    wanted = number(plain(hash_answer(ground_truth) or text_of(ground_truth)))
    if wanted is None:
        raise JudgeFailure(f"the row's answer {text_of(ground_truth)[:80]!r} is no number")
    given = stated_number(model_answer)
    if given is None:
        return Verdict(0.0, False, "the answer states no number, or several")
    if units == "required" and wanted.unit and not given.unit:
        return Verdict(0.0, False, "the answer has no unit")
    value = given.value if units == "ignore" else in_unit_of(given, wanted)
    if value is None:
        units_of = " and ".join(" ".join(each.unit) or "none" for each in (given, wanted))
        return Verdict(0.0, False, f"units that do not agree: {units_of}")
    apart = abs(value - wanted.value)
    right = apart <= max(Fraction(tolerance), Fraction(relative) * abs(wanted.value))
    return Verdict(float(right), right, f"{float(value):g}, and {float(wanted.value):g} is right")


def stated_number(answer: str) -> Number | None:
    """The number that an answer is, or the only one that stands in it."""
    if len(answer) > LONGEST:
        return None
    whole = number(plain(answer))
    if whole is not None:
        return whole
    if _DENIED.search(answer):
        return None
    found = {}
    for each in _IN_TEXT.findall(answer):
        read = number(plain(each)) or number(plain(re.sub(r"\s?[A-Za-z]+$", "", each)))
        if read is not None:
            found[read.value, read.unit] = read
    return next(iter(found.values())) if len(found) == 1 else None
