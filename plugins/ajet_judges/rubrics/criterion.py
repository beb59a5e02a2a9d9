"""Criterion: one thing by which an answer is graded.

Invariant: its text is one line of bounded length, so that in a list of criteria it can be nothing but one of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST = 600
"""Characters of one."""
MOST = 200
"""Criteria of one rubric."""
ALIKE = 0.8
"""Share of words from which on two say the same."""
_TEXT = ("criterion", "text", "description", "rubric", "title")
_WEIGHT = ("weight", "points")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Criterion:
    """See the module."""

    text: str
    weight: float = 1.0
    """Below 0: it counts against the answer."""
    category: str = ""


def criterion_of(text: str, weight: float = 1.0, category: str = "") -> Criterion:
    """A criterion with its text as one line. Raises ValueError for an empty one."""
    line = " ".join(text.split())[:LONGEST]
    if not line:
        raise ValueError("a criterion has no text")
    return Criterion(line, weight, category)


def criteria_of(told: Any) -> list[Criterion]:
    """The criteria of a row or an argument: a list of texts, or of mappings with a `criterion` and a `weight`; or a
    mapping of texts to weights. Raises ValueError."""
    if isinstance(told, str):
        told = [line for line in told.splitlines() if line.strip()]
    if isinstance(told, Mapping):
        told = [{"criterion": text, "weight": weight} for text, weight in told.items()]
    if not isinstance(told, Sequence) or not told:
        raise ValueError("a rubric is a list of criteria")
    if len(told) > MOST:
        raise ValueError(f"it has {len(told)} criteria, more than {MOST}")
    found = [_of(each) for each in told]
    if not any(each.weight > 0 for each in found):
        raise ValueError("no criterion has a weight above 0")
    return found


def numbered(criteria: Sequence[Criterion]) -> str:
    """The criteria as a judge is shown them."""
    lines: list[str] = []
    category = ""
    for number, each in enumerate(criteria, 1):
        if each.category and each.category != category:
            lines.append(f"{each.category}:")
        category = each.category
        lines.append(f"{number}. {each.text}")
    return "\n".join(lines)


def without_repeats(found: Sequence[Criterion], known: Sequence[Criterion] = ()) -> list[Criterion]:
    """The criteria that do not say what an earlier one, or one of `known`, says in nearly the same words."""
    kept: list[Criterion] = []
    words = [_words(each) for each in known]
    for each in found:
        own = _words(each)
        if not any(len(own & other) >= ALIKE * len(own | other) for other in words):
            kept.append(each)
            words.append(own)
    return kept


def _words(criterion: Criterion) -> frozenset[str]:
    text = criterion.text.casefold()
    return frozenset(_WORDS.findall(text)) or frozenset(text)


def _of(told: Any) -> Criterion:
    if isinstance(told, str):
        return criterion_of(told)
    if not isinstance(told, Mapping):
        raise ValueError(f"a criterion is {told!r:.80}")
    text = next((told[name] for name in _TEXT if isinstance(told.get(name), str) and told[name].strip()), None)
    weight = next((told[name] for name in _WEIGHT if told.get(name) is not None), 1.0)
    if text is None:
        raise ValueError(f"a criterion has no text: {dict(told)!r:.80}")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise ValueError(f"the weight of {text[:40]!r} is {weight!r:.40}")
    category = told.get("category")
    return criterion_of(text, float(weight), " ".join(category.split())[:60] if isinstance(category, str) else "")
