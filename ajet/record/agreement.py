"""How far a judge agrees with labels: Cohen's kappa of a table, and its interval.

Invariant: pure functions of counts. A table is (both yes; label yes, judged no; label no, judged yes; both no).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

Cells = tuple[int, int, int, int]
DRAWS = 4000
"""Of which kappa's interval is made."""


def cells_of(pairs: Iterable[tuple[bool, bool]]) -> Cells:
    """The table of (label, verdict)."""
    told = list(pairs)
    return tuple(told.count(each) for each in ((True, True), (True, False), (False, True), (False, False)))  # type: ignore[return-value]


def kappa(cells: Sequence[float]) -> float | None:
    """Cohen's (Educational and Psychological Measurement 20, 1960); None where chance alone would agree wholly."""
    both, missed, wrongly, neither = cells
    total = sum(cells)
    by_chance = ((both + missed) * (both + wrongly) + (neither + missed) * (neither + wrongly)) / total**2
    return None if by_chance == 1 else ((both + neither) / total - by_chance) / (1 - by_chance)


def kappa_interval(cells: Sequence[int]) -> tuple[float, float]:
    """95 %: the middle of kappa over tables drawn from the posterior of the four shares, with half an example more in
    each (Jeffreys' prior), so that full agreement on a few proves little."""
    draw = random.Random(0)
    found = sorted(
        value
        for _ in range(DRAWS)
        if (value := kappa([draw.gammavariate(count + 0.5, 1.0) for count in cells])) is not None
    )
    low, high, value = found[int(0.025 * len(found))], found[int(0.975 * len(found))], kappa(cells)
    return (low, high) if value is None else (min(low, value), max(high, value))
