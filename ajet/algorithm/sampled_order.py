"""Rows by episode, in the order in which its tokens were sampled, and rows by sample.

Invariant: `gathered` and `scattered` undo each other on trained tokens, bit for bit, however an episode is cut into
timelines: the order is call by call, and a call's reply has one place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ajet.schema.batch import Sample
from ajet.schema.call import Floats

Run = tuple[int, int, slice]
"""Trained tokens with nothing between them: their call, which sample they are in, and where."""


def sampled_runs(samples: Sequence[Sample]) -> list[Run]:
    """The sampled runs of one episode's samples, in the order of its calls."""
    runs = [
        (span.call, at, slice(span.start, span.stop))
        for at, sample in enumerate(samples)
        for span in sample.timeline.spans
    ]
    return sorted(runs, key=lambda run: run[0])


def gathered(samples: Sequence[Sample], rows_S_T: Sequence[npt.NDArray[np.floating]]) -> Floats:
    """[T_e] what `rows_S_T`, [T] for each sample of one episode, say of its trained tokens."""
    parts = [rows_S_T[at][where] for _, at, where in sampled_runs(samples)]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)


def scattered(samples: Sequence[Sample], row_T: Floats) -> list[Floats]:
    """The other way: [T] for each sample, 0 where nothing was trained."""
    found = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    start = 0
    for _, at, where in sampled_runs(samples):
        stop = start + where.stop - where.start
        found[at][where] = row_T[start:stop]
        start = stop
    return found
