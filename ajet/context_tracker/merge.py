"""Which call continues which, by exact tokens, in time linear in the tokens.

Invariant: a call continues the longest other call whose whole prompt + response is, token for token, the beginning of
its prompt; what is not an exact prefix is never joined. Answers depend on the tokens alone, not
on the order of the calls. `PrefixTree` keeps it.

How: all sequences enter a compressed prefix tree, longest first. A path of the tree holds a run of tokens, so a
sequence is compared with whole runs, and every one of its tokens is looked at once. What a call is known to share
with its parent (`Call.prefix`) is not even looked at: of linked calls only the distinct tokens are touched. A
sequence changes its run at most O(sqrt(distinct tokens)) times, because runs entered before are longer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Call, Ids

Bytes = npt.NDArray[np.uint8]

_LARGE = 1 << 18
"""Tokens of an episode that is worth huge pages, of which one is left in part by its ids, one by its other arrays."""
_PIECE = 1 << 20
"""Tokens of a piece of ids."""
_HUGE = 1 << 21
"""Bytes of a huge page."""


class Arena:
    """Holds the ids of an episode that has at most `tokens` tokens; of few tokens, each sequence has its own memory.

    What was kept is never handed out again; what was not kept is overwritten by the next. Memory of many small pieces
    is new to the process page by page, which costs more than to write it; large pieces come in huge pages.
    """

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


class Spot(NamedTuple):
    """A place in the tree: after `stop` tokens from the root, on path `path`."""

    path: int
    stop: int


ROOT = Spot(0, 0)
_LONG, _SOON = 4096, 256
"""Of so many tokens that may be shared, the first few are compared before the rest."""
_TRUE = b"\x01"
_LITTLE = 8
"""Less than this part of a call's tokens is not worth going on from: the call is entered whole, and kept so."""


class PrefixTree:
    """Token sequences with their common beginnings stored once."""

    def __init__(self) -> None:
        self._ids: list[Ids] = [np.empty(0, np.int32)]
        self._starts = [-1]
        self._parents = [-1]
        self._branches: dict[tuple[int, int, int], int] = {}
        self._wholes: list[Ids | None] = [None]
        """Path -> the sequence that it was made for, where that was entered in one piece."""

    def __len__(self) -> int:
        """The number of runs of tokens in the tree."""
        return len(self._ids)

    def at(self, spot: Spot, stop: int) -> Spot:
        """The place of the first `stop` tokens of the sequence that ends at `spot`."""
        path, starts = spot.path, self._starts
        while stop <= starts[path]:
            path = self._parents[path]
        return Spot(path, stop)

    def insert(self, rest: Ids, after: Spot = ROOT, whole: Ids | None = None) -> Spot:
        """Enter the sequence that continues `after` by `rest`; answers where it ends. `rest` is kept, not copied, as is
        `whole`: the sequence from the root on, where there is such a piece."""
        path, stop = after
        if not stop:
            whole = rest
        while rest.size:
            first = rest.item(0)
            if path:
                run, offset = self._ids[path], stop - self._starts[path]
                if offset < run.size and run.item(offset) == first:
                    same = _common(run, offset, rest)
                    stop += same
                    if same == rest.size:
                        break
                    rest = rest[same:]
                    first = rest.item(0)
            branch = (path, stop, first)
            following = self._branches.get(branch)
            if following is None:
                following = self._branches[branch] = len(self._ids)
                self._ids.append(rest)
                self._starts.append(stop)
                self._parents.append(path)
                self._wholes.append(whole)
                return Spot(following, stop + rest.size)
            path = following
        return Spot(path, stop)

    def ids(self, spot: Spot, start: int = 0) -> Ids:
        """[stop - start] the tokens from `start` to `spot`; shares memory with the tree where they lie in one run."""
        path, stop = spot
        if (whole := self._wholes[path]) is not None:
            return whole[start:stop]
        parts: list[Ids] = []
        while path > 0 and stop > start:
            first = self._starts[path]
            parts.append(self._ids[path][max(start - first, 0) : stop - first])
            path, stop = self._parents[path], first
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int32)

    def parent(self, path: int) -> tuple[int, int]:
        """The path that `path` departs from, and after how many tokens; (-1, -1) of the root."""
        return self._parents[path], self._starts[path]


def _common(run: Ids, offset: int, rest: Ids) -> int:
    """The number of leading tokens that `rest` and `run` from `offset` on share."""
    size = min(run.size - offset, rest.size)
    if size > _LONG:  # what departs soon (a window that slid) is not looked at to its end
        soon = _common(run, offset, rest[:_SOON])
        if soon < _SOON:
            return soon
    differ = run[offset : offset + size] != (rest if rest.size == size else rest[:size])
    first = differ.tobytes().find(_TRUE)  # three times as fast as argmax
    return size if first < 0 else first


def insert_calls(calls: Sequence[Call]) -> tuple[PrefixTree, list[Spot]]:
    """The tree of all calls' prompt + response, and where each call ends in it. Of what a call shares with its parent,
    little is looked at once more, so that the call's tokens lie in one piece."""
    sizes = [call.prefix + call.suffix_ids.size + call.response_ids.size for call in calls]
    sharing: dict[int, list[tuple[int, int]]] = {}
    for position, call in enumerate(calls):
        if call.parent is not None and call.prefix:
            sharing.setdefault(position, []).append((call.prefix, call.parent))
            sharing.setdefault(call.parent, []).append((call.prefix, position))
    tree, arena = PrefixTree(), Arena(sum(sizes))
    spots: list[Spot | None] = [None] * len(calls)
    for position in sorted(range(len(calls)), key=sizes.__getitem__, reverse=True):
        call, after = calls[position], ROOT
        for shared, other in sharing.get(position, ()):
            known = spots[other]
            if known is not None and shared > after[1]:
                after = tree.at(known, shared)
        stop, whole, paths = after[1], None, len(tree)
        if stop != call.prefix:
            rest = _tokens_from(calls, position, stop)
        elif 0 < stop * _LITTLE < sizes[position]:
            whole = arena.joined((tree.ids(after), call.suffix_ids, call.response_ids), sizes[position])
            rest = whole[stop:]
        else:
            rest = arena.joined((call.suffix_ids, call.response_ids), sizes[position] - stop)
        spots[position] = spot = tree.insert(rest, after, whole)
        if spot.path >= paths:
            arena.keep()
    return tree, [spot for spot in spots if spot is not None]


def _tokens_from(calls: Sequence[Call], position: int, start: int) -> Ids:
    """The tokens of one call's prompt + response from `start` on."""
    call = calls[position]
    begin = call.prefix + call.suffix_ids.size
    if start >= begin:
        return call.response_ids[start - begin :]
    parts = [call.response_ids, call.suffix_ids]
    begin = call.prefix
    need = begin
    while need > start:
        assert call.parent is not None, f"call {call.index} shares {need} tokens with nobody"
        call = calls[call.parent]
        for part, first in (
            (call.response_ids, call.prefix + call.suffix_ids.size),
            (call.suffix_ids, call.prefix),
        ):
            if need > first:
                parts.append(part[: need - first])
                need = first
        begin = need
    joined = np.concatenate(parts[::-1], dtype=np.int32)
    return joined[start - begin :]


def continued(
    calls: Sequence[Call], tree: PrefixTree, spots: Sequence[Spot], members: Sequence[int]
) -> dict[int, Spot | None]:
    """For each of `members`, where the longest other member that it continues ends: one whose prompt + response is
    the beginning of its prompt. None: it continues nobody. Members that end at one spot have the same tokens."""
    ends: dict[int, list[int]] = {}
    for position in members:
        ends.setdefault(spots[position].path, []).append(spots[position].stop)
    for stops in ends.values():
        stops.sort()
    answer: dict[int, Spot | None] = {}
    for position in members:
        path, limit = spots[position].path, spots[position].stop - calls[position].response_ids.size
        answer[position] = None
        while path > 0:
            stops = ends.get(path, [])
            nearest = bisect_right(stops, limit)
            if nearest:
                answer[position] = Spot(path, stops[nearest - 1])
                break
            path, start = tree.parent(path)
            limit = min(limit, start)
    return answer
