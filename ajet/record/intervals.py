"""How far a measured mean may be from the true one, and how far a judge agrees with labels: 95 % intervals.

Invariant: pure functions of the numbers given. An interval of a rate lies in [0, 1] and holds the rate; more tasks of
the same kind never make one wider. What is counted must be independent: attempts at one task are one number. Agreement
is Cohen's kappa of a table (both yes; label yes, judged no; label no, judged yes; both no).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import stdev

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""
EQUAL = 1e-9
"""Spread of values, as a share of the largest, that is rounding."""
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t_quantile(freedom: int) -> float:
    """Return Student's 97.5 % quantile to 3 decimals. Raises ValueError below 1.

    Above 30 degrees of freedom, Abramowitz & Stegun 26.7.5 is used.

    Args:
        freedom: Degrees of freedom.
    """
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom")
    if freedom <= len(_T):
        return _T[freedom - 1]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


def wilson(rate: float, count: int) -> tuple[float, float]:
    """Return the 95 % score interval of a rate over `count` tasks (Wilson, JASA 22, 1927).

    Raises ValueError for no tasks.
    """
    if count < 1:
        raise ValueError("a rate over no task has no interval")
    correction = Z * Z / count
    middle = (rate + correction / 2) / (1 + correction)
    half = Z * math.sqrt(rate * (1 - rate) / count + correction / (4 * count)) / (1 + correction)
    return min(rate, max(0.0, middle - half)), max(rate, min(1.0, middle + half))


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the mean's 95 % interval: standard error times Student's quantile.

    Returns:
        None for fewer than two values or for equal values; without spread no error can be estimated.
    """
    if len(values) < 2 or max(values) - min(values) <= EQUAL * max(map(abs, values)):
        return None
    return t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def plus_minus(error: float | None, form: str) -> str:
    """Return " ± ERROR" in the format specification `form`, or "" without an error.

    An error that the format would print as zeros gets one significant digit.
    """
    if not error:
        return ""
    digits = f"{error:{form}}"
    if any(digit in digits for digit in "123456789"):
        return f" ± {digits}"
    return f" ± {100 * error:.1g}%" if form.endswith("%") else f" ± {error:.1g}"


def exceeds_noise(differences: Sequence[float]) -> bool:
    """True if the mean of paired differences (per task) exceeds 0 by more than its own error.

    Two observations of half weight, the largest difference with both signs, stand for unseen variation: two equal
    differences have no spread and prove no effect (compare Agresti & Min, Stat. Med. 24, 2005, for paired rates). Below
    five tasks the result is always False.
    """
    largest = max(map(abs, differences), default=0.0)
    total = sum(differences)
    if largest == 0.0 or total <= 0:
        return False
    count = len(differences) + 1  # the two added observations have half weight each
    mean = total / count
    squares = sum((value - mean) ** 2 for value in differences)
    squares += 0.5 * ((largest - mean) ** 2 + (-largest - mean) ** 2)
    error = math.sqrt(squares / (count - 1) / count)
    return mean > t_quantile(count - 1) * error


Cells = tuple[int, int, int, int]
DRAWS = 4000
"""Number of posterior draws for kappa's interval."""


def cells_of(pairs: Iterable[tuple[bool, bool]]) -> Cells:
    """Return the numbers of pairs with (both yes, only label yes, only verdict yes, both no).

    Args:
        pairs: (label, verdict) of each example.
    """
    observed = list(pairs)
    return tuple(observed.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))  # type: ignore[return-value]


def kappa(cells: Sequence[float]) -> float | None:
    """Return Cohen's kappa (Educational and Psychological Measurement 20, 1960).

    None if chance alone gives full agreement.

    Args:
        cells: As returned by `cells_of`.
    """
    both, missed, wrongly, neither = cells
    total = sum(cells)
    by_chance = ((both + missed) * (both + wrongly) + (neither + missed) * (neither + wrongly)) / total**2
    return None if by_chance == 1 else ((both + neither) / total - by_chance) / (1 - by_chance)


def kappa_interval(cells: Sequence[int]) -> tuple[float, float]:
    """Return the 95 % interval of Cohen's kappa for a table of counts.

    It holds the central 95 % of kappa over tables drawn from the posterior of the four shares. The prior adds half an
    example to each cell (Jeffreys' prior), so that full agreement on a few examples proves little.

    Args:
        cells: As returned by `cells_of`.
    """
    rng = random.Random(0)
    sampled = sorted(
        value
        for _ in range(DRAWS)
        if (value := kappa([rng.gammavariate(count + 0.5, 1.0) for count in cells])) is not None
    )
    low, high, value = sampled[int(0.025 * len(sampled))], sampled[int(0.975 * len(sampled))], kappa(cells)
    return (low, high) if value is None else (min(low, value), max(high, value))
