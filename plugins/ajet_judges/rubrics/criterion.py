"""Criterion: one property by which an answer is graded, with a weight.

Invariant: the text is one line of bounded length, so it is exactly one entry of a numbered list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST = 600  # maximum characters
MOST = 200
"""Maximum criteria of a rubric."""
SAME_SHARE = 0.8
"""Minimum share of equal words in duplicate criteria."""
_TEXT = ("criterion", "text", "description", "rubric", "title")
_WEIGHT = ("weight", "points")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion with its weight and category."""

    text: str
    weight: float = 1.0
    """Negative: counts against the answer."""
    category: str = ""


def make_criterion(text: str, weight: float = 1.0, category: str = "") -> Criterion:
    """Return a criterion with its text as one line. Raises ValueError for an empty text."""
    line = " ".join(text.split())[:LONGEST]
    if not line:
        raise ValueError("a criterion has no text")
    return Criterion(line, weight, category)


def parse_criteria(rubric: Any) -> list[Criterion]:
    """Parse a rubric and return its criteria.

    A rubric is a text with a criterion per line, a list of texts, a list of mappings with `criterion` and `weight`, or
    a mapping of texts to weights.

    Raises:
        ValueError: the rubric is malformed, too long, or has no positive weight.
    """
    if isinstance(rubric, str):
        rubric = [line for line in rubric.splitlines() if line.strip()]
    if isinstance(rubric, Mapping):
        rubric = [{"criterion": text, "weight": weight} for text, weight in rubric.items()]
    if not isinstance(rubric, Sequence) or not rubric:
        raise ValueError("a rubric is a list of criteria")
    if len(rubric) > MOST:
        raise ValueError(f"it has {len(rubric)} criteria, more than {MOST}")
    criteria = [_parse_criterion(entry) for entry in rubric]
    if not any(criterion.weight > 0 for criterion in criteria):
        raise ValueError("no criterion has a weight above 0")
    return criteria


def number_criteria(criteria: Sequence[Criterion]) -> str:
    """Return the criteria as a numbered list for a prompt, with each category above its first criterion."""
    lines: list[str] = []
    category = ""
    for number, criterion in enumerate(criteria, 1):
        if criterion.category and criterion.category != category:
            lines.append(f"{criterion.category}:")
        category = criterion.category
        lines.append(f"{number}. {criterion.text}")
    return "\n".join(lines)


def drop_repeats(criteria: Sequence[Criterion], earlier_criteria: Sequence[Criterion] = ()) -> list[Criterion]:
    """Return the criteria without near duplicates of criteria before them or in `earlier_criteria`.

    Two criteria are near duplicates if they share SAME_SHARE of their words.
    """
    distinct: list[Criterion] = []
    known_words = [_split_words(earlier) for earlier in earlier_criteria]
    for criterion in criteria:
        own_words = _split_words(criterion)
        if not any(
            len(own_words & other_words) >= SAME_SHARE * len(own_words | other_words) for other_words in known_words
        ):
            distinct.append(criterion)
            known_words.append(own_words)
    return distinct


def _split_words(criterion: Criterion) -> frozenset[str]:
    """Return the set of a criterion's words; of its characters, if it has no words."""
    text = criterion.text.casefold()
    return frozenset(_WORDS.findall(text)) or frozenset(text)


def _parse_criterion(entry: Any) -> Criterion:
    """Parse one entry of a rubric: a text, or a mapping with text, weight and category. Raises ValueError."""
    if isinstance(entry, str):
        return make_criterion(entry)
    if not isinstance(entry, Mapping):
        raise ValueError(f"a criterion is {entry!r:.80}")
    text = next((entry[name] for name in _TEXT if isinstance(entry.get(name), str) and entry[name].strip()), None)
    weight = next((entry[name] for name in _WEIGHT if entry.get(name) is not None), 1.0)
    if text is None:
        raise ValueError(f"a criterion has no text: {dict(entry)!r:.80}")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise ValueError(f"the weight of {text[:40]!r} is {weight!r:.40}")
    category = entry.get("category")
    return make_criterion(text, float(weight), " ".join(category.split())[:60] if isinstance(category, str) else "")
