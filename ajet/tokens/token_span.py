"""The tokens of a reply that contain a piece of its text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from ajet.schema.call import Ids


def span_of_text(decode: Callable[[Ids], str], ids: Ids, piece: str) -> tuple[int, int] | None:
    """Return [start, stop) within `ids` of the first occurrence of `piece`, or None without an occurrence.

    The span has the fewest tokens whose texts contain the complete piece. A token that overlaps the piece's beginning
    or end is included. `decode` returns the text of ids, and is called about 2 log2(N) times.
    """
    text = decode(ids)
    begin = text.find(piece)
    if begin < 0 or not piece:
        return None
    end = begin + len(piece)
    counts = range(ids.size + 1)
    first_count = bisect_left(counts, begin + 1, key=lambda count: len(decode(ids[:count])))
    last_count = bisect_left(counts, end, key=lambda count: len(decode(ids[:count])))
    while last_count < ids.size and not decode(ids[:last_count]).startswith(
        text[:end]
    ):  # a character continues in the next token
        last_count += 1
    return first_count - 1, last_count
