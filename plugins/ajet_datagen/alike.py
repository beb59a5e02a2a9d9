"""Finds duplicate tasks by their letters, and by an embedding model if one is configured.

Invariant: of duplicates by any measure the first task stays, in the given order. Only questions are compared.
Optionally, different numbers make two tasks distinct, since another number has another answer. The letter measure is
the cosine of counts of four-character runs (case and spaces ignored): it finds repeated wordings but no paraphrases. A
model finds paraphrases, with some false matches.
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
RUN = 4  # characters of a run
WIDTH = 4096
"""Entries of a text's count vector. Character runs are hashed into it, so runs may share an entry."""
ROUNDING = 1e-6
"""Numerical tolerance of the cosine of equal vectors."""


FIGURES = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SimilarityMeasure:
    """Vectors of texts by one measure, and the cosine from which two texts count as duplicates.

    All vectors have length 1.
    """

    vectors: Vectors
    threshold: float
    known: Vectors | None = None
    """Vectors of other texts which no selected text may resemble."""


def count_letter_runs(texts: Sequence[str]) -> Vectors:
    """Return [N, WIDTH] hashed counts of four-character runs per text, scaled to length 1."""
    vectors = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in enumerate(texts):
        normalized = re.sub(r"\s+", " ", text.casefold()).strip()
        for start in range(max(len(normalized) - RUN + 1, 1)):  # a shorter text is one run
            vectors[row, _hash_run(normalized[start : start + RUN])] += 1
    return normalize_vectors(vectors)


def normalize_vectors(vectors: Vectors) -> Vectors:
    """Scale each vector [N, ·] to length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def index_numbers(texts: Sequence[str]) -> Numbers:
    """Return [N] an index per text, equal for texts with the same numbers in any order.

    0 marks a text without numbers. Numbers are normalized: 1,000 is 1000, 3.50 is 3.5.
    """
    index_by_figures: dict[tuple[str, ...], int] = {(): 0}
    indices = np.zeros(len(texts), np.int64)
    for row, text in enumerate(texts):
        figures = sorted(str(Decimal(figure.replace(",", "")).normalize()) for figure in FIGURES.findall(text))
        indices[row] = index_by_figures.setdefault(tuple(figures), len(index_by_figures))
    return indices


def can_be_duplicates(numbers: Numbers, others: Numbers | np.int64) -> npt.NDArray[np.bool_]:
    """Return a boolean mask, True where two texts have equal numbers or one has none.

    Args:
        numbers: results of `index_numbers`, computed for all texts together.
        others: same, of a shape that broadcasts.
    """
    return (numbers == others) | (numbers == 0) | (others == 0)


def select_distinct(*measures: SimilarityMeasure, numbers: Numbers | None = None) -> list[int]:
    """Return the indexes of texts that resemble no earlier selected text and no `known` text, by any measure.

    Args:
        measures: measures of the same texts, which resemble each other from the measure's threshold on.
        numbers: `index_numbers` of these texts and then of the known ones; texts with different numbers are never
            duplicates. None compares numbers as ordinary letters.
    """
    selected: list[int] = []
    comparisons = [_ComparedTexts(measure, numbers) for measure in measures]
    for index in range(len(measures[0].vectors)):
        if not any(comparison.has_duplicate(index) for comparison in comparisons):
            selected.append(index)
            for comparison in comparisons:
                comparison.add(index)
    return selected


class _ComparedTexts:
    """Vectors of the known and of the selected texts, by one measure, in one array that is filled step by step."""

    def __init__(self, measure: SimilarityMeasure, numbers: Numbers | None) -> None:
        self._measure, count = measure, len(measure.vectors)
        known_vectors = measure.vectors[:0] if measure.known is None else measure.known
        indexes = np.zeros(count + len(known_vectors), np.int64) if numbers is None else numbers
        self._own_indexes = indexes[:count]
        self._numbers = np.concatenate([indexes[count:], np.zeros(count, np.int64)])
        self._vectors, self._count = np.vstack([known_vectors, np.empty_like(measure.vectors)]), len(known_vectors)

    def has_duplicate(self, model_index: int) -> bool:
        """Return True if the text with this index resembles a known or an earlier selected text."""
        cosines = self._vectors[: self._count] @ self._measure.vectors[model_index]
        have_equal_numbers = can_be_duplicates(self._numbers[: self._count], self._own_indexes[model_index])
        return bool((have_equal_numbers & (cosines >= self._measure.threshold - ROUNDING)).any())

    def add(self, model_index: int) -> None:
        """Add the text with this index to the selected texts."""
        self._vectors[self._count] = self._measure.vectors[model_index]
        self._numbers[self._count] = self._own_indexes[model_index]
        self._count += 1


def select_unlike(vectors: Vectors, known: Vectors, threshold: float, numbers: Numbers | None = None) -> list[int]:
    """Return the indexes of texts that resemble no `known` text, such as training tasks unlike held-out tasks.

    Args:
        vectors: [N, ·] vectors of length 1.
        known: [M, ·] vectors of length 1.
        threshold: cosine from which two texts are duplicates.
        numbers: as in `select_distinct`.
    """
    if not len(known) or not len(vectors):
        return list(range(len(vectors)))
    cosines = vectors @ known.T
    if numbers is not None:
        cosines[~can_be_duplicates(numbers[: len(vectors), None], numbers[None, len(vectors) :])] = -1
    return [int(index) for index in np.flatnonzero(cosines.max(axis=1) < threshold - ROUNDING)]


def _hash_run(run: str) -> int:
    """Return the entry of a count vector, 0 to WIDTH - 1, for a run. Python's `hash` differs between processes."""
    value = 0
    for character in run:
        value = (value * 1_000_003 + ord(character)) & 0x7FFFFFFF
    return value % WIDTH
