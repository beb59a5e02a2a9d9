"""Where what `reader.py` printed of two runs differs, earliest step first.

Invariant: two results without a difference have the same keys with equal values, number by number; NaN equals NaN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ABSENT = "(not there)"
Results = dict[tuple[int, str, int], object]
"""By step, place, and which one of that name."""


@dataclass(frozen=True)
class Difference:
    """One value that differs."""

    step: int
    place: str
    before: object
    now: object

    def __str__(self) -> str:
        return f"step {self.step}, {self.place}: {_shorten(self.before)} before, {_shorten(self.now)} now"


def parse_results(lines: str) -> Results:
    """Parse the reader's lines."""
    results: Results = {}
    for line in lines.splitlines():
        step, place, value = json.loads(line)
        number = 0
        while (step, place, number) in results:
            number += 1
        results[step, place, number] = value
    return results


def find_differences(before: Results, now: Results, ignored: Sequence[str] = ()) -> Iterator[Difference]:
    """Yield the differences by step, in the order of the record. `ignored`: patterns of places that may differ."""
    patterns = [re.compile(each) for each in ignored]
    keys = dict.fromkeys([*before, *now])
    for key in sorted(keys, key=lambda key: key[0]):
        one, other = before.get(key, ABSENT), now.get(key, ABSENT)
        if not is_equal(one, other) and not any(each.search(key[1]) for each in patterns):
            yield _locate(key[0], key[1], one, other)


def is_equal(one: object, other: object) -> bool:
    """True for the same type and value, lists item by item."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _locate(step: int, place: str, one: object, other: object) -> Difference:
    """Narrow a list down to its first item that differs."""
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return Difference(step, f"length of {place}", len(one), len(other))
        at = next(at for at, pair in enumerate(zip(one, other, strict=True)) if not is_equal(*pair))
        return Difference(step, f"{place}[{at}]", one[at], other[at])
    return Difference(step, place, one, other)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
