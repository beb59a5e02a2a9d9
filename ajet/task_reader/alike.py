"""Which tasks say the same: by their letters, and by an embedding model where one is named.

Invariant: of tasks that are alike by any measure the first one stays, in the order given; what is compared is the
question alone. By letters: cosine of the counts of runs of four characters (case and spaces aside), which finds one
wording twice and no paraphrase; a model finds paraphrases, and takes some words for one another that are not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
RUN = 4
"""Characters of a run."""
WIDTH = 4096
"""Of a vector of counts; runs share a place by chance."""
ROUNDING = 1e-6
"""By which the cosine of equal vectors may fall short of 1."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to tell how alike texts are: vectors of length 1, and the cosine from which on two count as one."""

    vectors: Vectors
    threshold: float
    known: Vectors | None = None
    """Of texts that none may be like."""


def by_letters(texts: Sequence[str]) -> Vectors:
    """[N, WIDTH] of length 1."""
    vectors = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in enumerate(texts):
        plain = re.sub(r"\s+", " ", text.casefold()).strip()
        for start in range(max(len(plain) - RUN + 1, 1)):
            vectors[row, _place(plain[start : start + RUN])] += 1
    return normed(vectors)


def normed(vectors: Vectors) -> Vectors:
    """Of length 1 each."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def first_of_each(*measures: Measure) -> list[int]:
    """Places of those that are, by all measures, less alike than its threshold to every earlier one that stays, and to
    all `known`. The measures are of the same texts."""
    kept: list[int] = []
    held = [_Held(measure) for measure in measures]
    for place in range(len(measures[0].vectors)):
        if not any(each.has_like(place) for each in held):
            kept.append(place)
            for each in held:
                each.add(place)
    return kept


class _Held:
    """By one measure, what the next one may not be like."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        known = measure.vectors[:0] if measure.known is None else measure.known
        self._vectors, self._count = np.vstack([known, np.empty_like(measure.vectors)]), len(known)

    def has_like(self, place: int) -> bool:
        cosines = self._vectors[: self._count] @ self._measure.vectors[place]
        return bool(self._count) and float(cosines.max()) >= self._measure.threshold - ROUNDING

    def add(self, place: int) -> None:
        self._vectors[self._count] = self._measure.vectors[place]
        self._count += 1


def apart_from(vectors: Vectors, known: Vectors, threshold: float) -> list[int]:
    """Places of those that are less alike than `threshold` to all `known`: what may be trained on, held-out ones
    known."""
    if not len(known) or not len(vectors):
        return list(range(len(vectors)))
    return [int(place) for place in np.flatnonzero((vectors @ known.T).max(axis=1) < threshold - ROUNDING)]


def _place(run: str) -> int:
    number = 0
    for character in run:
        number = (number * 1_000_003 + ord(character)) & 0x7FFFFFFF
    return number % WIDTH
