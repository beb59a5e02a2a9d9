"""Which tasks say the same: by an embedding model of a server, or, where none is named, by their letters.

Invariant: of tasks that are alike the first one stays, in the order given; what is compared is the question alone. By
letters: cosine of the counts of runs of four characters (case and spaces aside), which finds one wording twice and no
paraphrase; a model finds both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
RUN = 4
"""Characters of a run."""
WIDTH = 4096
"""Of a vector of counts; runs share a place by chance."""


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


def first_of_each(vectors: Vectors, threshold: float, known: Vectors | None = None) -> list[int]:
    """Places of those that are less alike than `threshold` to every earlier one that stays, and to all `known`."""
    kept: list[int] = []
    held = known if known is not None else np.empty((0, vectors.shape[1]), np.float32)
    for place, vector in enumerate(vectors):
        if len(held) == 0 or float((held @ vector).max()) < threshold:
            kept.append(place)
            held = np.vstack([held, vector])
    return kept


def apart_from(vectors: Vectors, known: Vectors, threshold: float) -> list[int]:
    """Places of those that are less alike than `threshold` to all `known`: what may be trained on, held-out ones
    known."""
    if not len(known) or not len(vectors):
        return list(range(len(vectors)))
    return [int(place) for place in np.flatnonzero((vectors @ known.T).max(axis=1) < threshold)]


def _place(run: str) -> int:
    number = 0
    for character in run:
        number = (number * 1_000_003 + ord(character)) & 0x7FFFFFFF
    return number % WIDTH
