"""Decoding: ids -> text, a few at a time.

Invariant: the pieces joined are the text of all ids decoded at once; a character whose bytes are split over tokens
comes out whole, with the token that completes it. The context token in front makes tokenizers that strip a leading
space (SentencePiece) decode a continuation as a continuation; where a token's bytes are the same wherever it stands
(byte-level tokenizers), whole characters need nothing before them, and each token is decoded once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ajet.schema.call import Ids

_WINDOW = 24


class IncrementalDecoder:
    """Turns one reply's ids into text; `decode` maps a list of ids to its text, special tokens included. `bytewise`: it
    puts the bytes of each together, so that no context is needed."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], context: int | None = None, *, bytewise: bool = False
    ) -> None:
        self._decode = decode
        self._bytewise = bytewise
        context = None if bytewise else context
        self._window: list[int] = [] if context is None else [context]
        self._context = "" if context is None else decode([context])
        self._given = len(self._context)

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain."""
        self._window.extend(ids)
        text = self._decode(self._window)
        ready = len(text.rstrip("\ufffd"))
        piece = text[self._given : ready]
        if self._bytewise and ready == len(text):
            self._window, self._given = [], 0
            return piece
        self._given = max(self._given, ready)
        if len(self._window) > _WINDOW and ready == len(text):
            self._window = self._window[-1:]
            text = self._decode(self._window)
            if text.endswith("\ufffd"):  # the last token only completes a character: keep one that stands alone
                self._window, self._given = [], 0
            else:
                self._given = len(text)
        return piece

    def close(self) -> str:
        """The text that was held back: bytes that never became a character, as replacement characters."""
        return self._decode(self._window)[self._given :] if self._window else ""


def span_of_text(decode: Callable[[Ids], str], ids: Ids, piece: str) -> tuple[int, int] | None:
    """Return [start, stop) within `ids` of the first occurrence of `piece`; None without one.

    The tokens are the fewest whose texts hold the complete piece; a token that holds more than its beginning or end
    belongs to it. `decode` returns the text of ids, and is called about 2 log2(N) times.
    """
    text = decode(ids)
    begin = text.find(piece)
    if begin < 0 or not piece:
        return None
    end = begin + len(piece)
    counts = range(ids.size + 1)
    first = bisect_left(counts, begin + 1, key=lambda count: len(decode(ids[:count])))
    last = bisect_left(counts, end, key=lambda count: len(decode(ids[:count])))
    while last < ids.size and not decode(ids[:last]).startswith(text[:end]):  # a character's bytes go on in the next
        last += 1
    return first - 1, last
