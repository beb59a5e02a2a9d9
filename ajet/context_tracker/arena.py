"""Arena: memory for the tokens of an episode, taken in few large pieces.

Invariant: what was kept is never handed out again; what was not kept is written over by the next. Memory of many
small pieces is new to the process page by page, which costs more than to write it; large pieces come in huge pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Ids

Bytes = npt.NDArray[np.uint8]

_LARGE = 1 << 18
"""Tokens of an episode that is worth huge pages, of which one is left in part by its ids, one by its other arrays."""
_PIECE = 1 << 20
"""Tokens of a piece of ids."""
_HUGE = 1 << 21
"""Bytes of a huge page."""


class Arena:
    """Holds the ids of an episode that has at most `tokens` tokens; of few tokens, each sequence lies in memory of
    its own."""

    def __init__(self, tokens: int) -> None:
        self._large = tokens >= _LARGE
        self._most = min(tokens, _PIECE)
        self._piece: Ids = np.empty(0, np.int32)
        self._at = self._end = 0

    def joined(self, parts: Sequence[Ids], size: int) -> Ids:
        """[size] the parts, one after the other: of use until the next call of this method, or for good once kept."""
        if not self._large:
            return np.concatenate(parts)
        if self._at + size > self._piece.size:
            self._piece, self._at = _in_huge_pages(4 * max(self._most, size)).view(np.int32), 0
        self._end = self._at + size
        return np.concatenate(parts, out=self._piece[self._at : self._end])

    def keep(self) -> None:
        """Keep what was joined last where it is."""
        self._at = self._end


def room(tokens: int, each: int) -> Bytes:
    """[tokens * each] bytes to be written, `each` a token."""
    return _in_huge_pages(tokens * each) if tokens >= _LARGE else np.empty(tokens * each, np.uint8)


def _in_huge_pages(size: int) -> Bytes:
    """[size] bytes from the border of a huge page on, with room up to the border of another: what shares a huge page
    with other memory comes in small ones. numpy asks the system for huge pages for 4 MiB or more, as these are."""
    whole = np.empty(size + -size % _HUGE + _HUGE, np.uint8)
    start = -whole.ctypes.data % _HUGE
    return whole[start : start + size]
