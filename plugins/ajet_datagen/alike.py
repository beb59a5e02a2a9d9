"""Which tasks say the same: by their letters, and by an embedding model where one is named.

Invariant: of tasks that are alike by any measure the first one stays, in the order given; what is compared is the
question alone. Where the caller says so, numbers make two tasks of what else is one: a question with other numbers has
another answer. By letters: cosine of the counts of runs of four characters (case and spaces aside), which finds one
wording twice and no paraphrase; a model finds paraphrases, and takes some words for one another that are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
RUN = 4
"""Characters of a run."""
WIDTH = 4096
"""Of a vector of counts; runs share a place by chance."""
ROUNDING = 1e-6
"""By which the cosine of equal vectors may fall short of 1."""


FIGURES = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SimilarityMeasure:
    """One way to tell how alike texts are: vectors of length 1, and the cosine from which on two count as one."""

    vectors: Vectors
    threshold: float
    known: Vectors | None = None
    """Of texts that none may be like."""


def count_letter_runs(texts: Sequence[str]) -> Vectors:
    """[N, WIDTH] of length 1."""
    vectors = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in enumerate(texts):
        plain = re.sub(r"\s+", " ", text.casefold()).strip()
        for start in range(max(len(plain) - RUN + 1, 1)):
            vectors[row, _hash_run(plain[start : start + RUN])] += 1
    return normalize_vectors(vectors)


def normalize_vectors(vectors: Vectors) -> Vectors:
    """The vectors, each scaled to length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def index_numbers(texts: Sequence[str]) -> Numbers:
    """[N] equal for texts with the same numbers, in whatever order and as often each; 0 for those without one. Read are
    those in figures: 1,000 is 1000, and 3.50 is 3.5."""
    known: dict[tuple[str, ...], int] = {(): 0}
    found = np.zeros(len(texts), np.int64)
    for row, text in enumerate(texts):
        figures = sorted(str(Decimal(each.replace(",", "")).normalize()) for each in FIGURES.findall(text))
        found[row] = known.setdefault(tuple(figures), len(known))
    return found


def can_be_duplicates(numbers: Numbers, others: Numbers | np.int64) -> npt.NDArray[np.bool_]:
    """Whether texts with these numbers (`numbers_of`, of both together) can be one: the same, or one has none."""
    return (numbers == others) | (numbers == 0) | (others == 0)


def select_distinct(*measures: SimilarityMeasure, numbers: Numbers | None = None) -> list[int]:
    """Places of those that are, by all measures, less alike than its threshold to every earlier one that stays, and to
    all `known`. The measures are of the same texts. `numbers`: of these and then of those known, as `numbers_of` has
    them: two that have other ones are not alike; None: numbers are letters like any."""
    places: list[int] = []
    held = [_ComparedTexts(measure, numbers) for measure in measures]
    for place in range(len(measures[0].vectors)):
        if not any(each.has_duplicate(place) for each in held):
            places.append(place)
            for each in held:
                each.add(place)
    return places


class _ComparedTexts:
    """The texts, by one measure, that the next one may not be like."""

    def __init__(self, measure: SimilarityMeasure, numbers: Numbers | None) -> None:
        self._measure, count = measure, len(measure.vectors)
        known = measure.vectors[:0] if measure.known is None else measure.known
        indexes = np.zeros(count + len(known), np.int64) if numbers is None else numbers
        self._own = indexes[:count]
        self._numbers = np.concatenate([indexes[count:], np.zeros(count, np.int64)])
        self._vectors, self._count = np.vstack([known, np.empty_like(measure.vectors)]), len(known)

    def has_duplicate(self, place: int) -> bool:
        cosines = self._vectors[: self._count] @ self._measure.vectors[place]
        same = can_be_duplicates(self._numbers[: self._count], self._own[place])
        return bool((same & (cosines >= self._measure.threshold - ROUNDING)).any())

    def add(self, place: int) -> None:
        self._vectors[self._count] = self._measure.vectors[place]
        self._numbers[self._count] = self._own[place]
        self._count += 1


def select_unlike(vectors: Vectors, known: Vectors, threshold: float, numbers: Numbers | None = None) -> list[int]:
    """Places of those that are less alike than `threshold` to all `known`: what may be trained on, held-out ones
    known. `numbers`: as `first_of_each` takes them."""
    if not len(known) or not len(vectors):
        return list(range(len(vectors)))
    cosines = vectors @ known.T
    if numbers is not None:
        cosines[~can_be_duplicates(numbers[: len(vectors), None], numbers[None, len(vectors) :])] = -1
    return [int(place) for place in np.flatnonzero(cosines.max(axis=1) < threshold - ROUNDING)]


def _hash_run(run: str) -> int:
    number = 0
    for character in run:
        number = (number * 1_000_003 + ord(character)) & 0x7FFFFFFF
    return number % WIDTH
