"""Arena: memory for the ids of an episode's calls, taken in few large pieces.

Invariant: what was kept is never handed out again; what was not kept is written over by the next. Memory of many
small pieces is new to the process page by page, which costs more than to write it; large pieces come in huge pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.schema.call import Ids

_PIECE = 1 << 20
"""Tokens: of 4 MiB on, numpy asks the system for huge pages."""


class Arena:
    """Holds the tokens of an episode that has at most `tokens` tokens; of few tokens, each sequence lies in memory of
    its own."""

    def __init__(self, tokens: int) -> None:
        self._large = tokens >= _PIECE
        self._piece: Ids = np.empty(0, np.int32)
        self._at = self._end = 0

    def joined(self, parts: Sequence[Ids], size: int) -> Ids:
        """[size] the parts, one after the other: of use until the next call of this method, or for good once kept."""
        if not self._large:
            return np.concatenate(parts)
        if self._at + size > self._piece.size:
            self._piece, self._at = np.empty(max(_PIECE, size), np.int32), 0
        self._end = self._at + size
        return np.concatenate(parts, out=self._piece[self._at : self._end])

    def keep(self) -> None:
        """Keep what was joined last where it is."""
        self._at = self._end
