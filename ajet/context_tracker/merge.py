"""PrefixTree: finds the calls that continue other calls, by exact tokens, in time linear in the tokens.

Invariant: a call continues the longest other call whose prompt and response are, token for token, the beginning of its
prompt. The result depends on the tokens alone, not on the order of the calls.

All sequences are inserted into a compressed prefix tree, the longest first. A path of the tree is a run of tokens.
Sequences are compared run by run, and each token is read once. Tokens shared with the parent (`Call.prefix`) are not
compared at all. A sequence changes its run at most O(sqrt(distinct tokens)) times, because the runs inserted earlier
are longer.
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
"""Tokens of an episode from which on huge pages are used. Ids and other arrays each leave one page partly empty."""
_PIECE = 1 << 20
"""Tokens of one piece of memory."""
_HUGE = 1 << 21
"""Bytes of one huge page."""


class Arena:
    """Allocates memory for the token ids of an episode.

    A sequence stored by `keep_last` is never overwritten. Any other is overwritten by the next. Large pieces of memory
    come in huge pages: the first access to many small pages costs more than writing them.

    Args:
        tokens: Maximum number of tokens of all stored sequences.
    """

    def __init__(self, tokens: int) -> None:
        self._is_large = tokens >= _LARGE
        self._block_tokens = min(tokens, _PIECE)
        self._block: Ids = np.empty(0, np.int32)
        self._used_end = self._draft_end = 0

    def join_ids(self, parts: Sequence[Ids], size: int) -> Ids:
        """Return the joined parts [size]. The ids are valid until the next call, unless `keep_last` stores them."""
        if not self._is_large:
            return np.concatenate(parts)
        if self._used_end + size > self._block.size:
            self._block, self._used_end = _allocate_huge_pages(4 * max(self._block_tokens, size)).view(np.int32), 0
        self._draft_end = self._used_end + size
        return np.concatenate(parts, out=self._block[self._used_end : self._draft_end])

    def keep_last(self) -> None:
        """Store the sequence that was joined last."""
        self._used_end = self._draft_end


def allocate_bytes(tokens: int, bytes_per_token: int) -> Bytes:
    """Return uninitialized memory [tokens * bytes_per_token], in huge pages if it is large."""
    return (
        _allocate_huge_pages(tokens * bytes_per_token)
        if tokens >= _LARGE
        else np.empty(tokens * bytes_per_token, np.uint8)
    )


def _allocate_huge_pages(size: int) -> Bytes:
    """Return memory [size] that starts and ends at the border of a huge page.

    The system splits a huge page that two arrays share into small pages. numpy requests huge pages from 4 MiB on.
    """
    memory = np.empty(size + -size % _HUGE + _HUGE, np.uint8)
    start = -memory.ctypes.data % _HUGE
    return memory[start : start + size]


class Spot(NamedTuple):
    """A place in the tree: behind the first `stop` tokens of a sequence that runs along path `path`."""

    path: int
    stop: int


ROOT = Spot(0, 0)
_LONG, _SOON = 4096, 256
"""If more tokens than `_LONG` may be shared, the first `_SOON` are compared before the rest."""
_TRUE = b"\x01"
_LITTLE = 8
"""A call that shares less than 1/8 of its tokens with others is stored in one piece."""


class PrefixTree:
    """Token sequences with their common beginnings stored once."""

    def __init__(self) -> None:
        self._ids: list[Ids] = [np.empty(0, np.int32)]
        self._path_starts = [-1]
        self._parents = [-1]
        self._branches: dict[tuple[int, int, int], int] = {}
        self._complete_sequences: list[Ids | None] = [None]
        """Path -> the sequence of the path from the root on, if the sequence was inserted in one piece."""

    def __len__(self) -> int:
        """The number of runs of tokens in the tree."""
        return len(self._ids)

    def at(self, spot: Spot, stop: int) -> Spot:
        """Return the place of the first `stop` tokens of the sequence that ends at `spot`."""
        path, starts = spot.path, self._path_starts
        while stop <= starts[path]:
            path = self._parents[path]
        return Spot(path, stop)

    def insert(self, rest: Ids, after: Spot = ROOT, joined: Ids | None = None) -> Spot:
        """Insert the sequence that continues `after` by `rest`. Return the end of the sequence.

        Args:
            rest: Stored without a copy, like `joined`.
            after: The place from which the sequence continues.
            joined: The sequence from the root on, if available in one piece.
        """
        path, stop = after
        if not stop:
            joined = rest
        while rest.size:
            first_id = rest.item(0)
            if path:
                run, offset = self._ids[path], stop - self._path_starts[path]
                # The sequence leaves a run only where it differs: the branch is named by (path, position, next token).
                if offset < run.size and run.item(offset) == first_id:
                    common_count = _count_common(run, offset, rest)
                    stop += common_count
                    if common_count == rest.size:
                        break
                    rest = rest[common_count:]
                    first_id = rest.item(0)
            branch = (path, stop, first_id)
            next_path = self._branches.get(branch)
            if next_path is None:
                next_path = self._branches[branch] = len(self._ids)
                self._ids.append(rest)
                self._path_starts.append(stop)
                self._parents.append(path)
                self._complete_sequences.append(joined)
                return Spot(next_path, stop + rest.size)
            path = next_path
        return Spot(path, stop)

    def ids(self, spot: Spot, start: int = 0) -> Ids:
        """Return the token ids from position `start` to `spot`: a view if they are in one array, else a copy."""
        path, stop = spot
        if (joined := self._complete_sequences[path]) is not None:
            return joined[start:stop]
        parts: list[Ids] = []
        while path > 0 and stop > start:
            path_start = self._path_starts[path]
            parts.append(self._ids[path][max(start - path_start, 0) : stop - path_start])
            path, stop = self._parents[path], path_start
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int32)

    def parent(self, path: int) -> tuple[int, int]:
        """Return the path from which `path` branches off, and the number of tokens before the branch.

        (-1, -1) for the root.
        """
        return self._parents[path], self._path_starts[path]


def _count_common(run: Ids, offset: int, rest: Ids) -> int:
    """Return the number of leading tokens that `rest` shares with `run` from `offset` on."""
    size = min(run.size - offset, rest.size)
    if size > _LONG:  # a window that slid differs early: the rest is not compared
        head_count = _count_common(run, offset, rest[:_SOON])
        if head_count < _SOON:
            return head_count
    differ = run[offset : offset + size] != (rest if rest.size == size else rest[:size])
    first_difference = differ.tobytes().find(_TRUE)  # three times as fast as argmax
    return size if first_difference < 0 else first_difference


def insert_calls(calls: Sequence[Call]) -> tuple[PrefixTree, list[Spot]]:
    """Return the tree of all calls' prompts and responses, and the end of each call in the tree.

    A small part shared with the parent is stored again, to have the call's tokens in one piece.
    """
    sizes = [call.prefix + call.suffix_ids.size + call.response_ids.size for call in calls]
    # Position of a call -> (shared tokens, position) of its parent and of the calls whose parent it is.
    sharing: dict[int, list[tuple[int, int]]] = {}
    for position, call in enumerate(calls):
        if call.parent is not None and call.prefix:
            sharing.setdefault(position, []).append((call.prefix, call.parent))
            sharing.setdefault(call.parent, []).append((call.prefix, position))
    tree, arena = PrefixTree(), Arena(sum(sizes))
    spots: list[Spot | None] = [None] * len(calls)
    for position in sorted(range(len(calls)), key=sizes.__getitem__, reverse=True):
        call, start_spot = calls[position], ROOT
        for shared, other_position in sharing.get(position, ()):
            known_spot = spots[other_position]
            if known_spot is not None and shared > start_spot[1]:
                start_spot = tree.at(known_spot, shared)
        stop, joined, paths = start_spot[1], None, len(tree)
        if stop != call.prefix:
            new_ids = _collect_tokens(calls, position, stop)
        elif 0 < stop * _LITTLE < sizes[position]:
            joined = arena.join_ids((tree.ids(start_spot), call.suffix_ids, call.response_ids), sizes[position])
            new_ids = joined[stop:]
        else:
            new_ids = arena.join_ids((call.suffix_ids, call.response_ids), sizes[position] - stop)
        spots[position] = spot = tree.insert(new_ids, start_spot, joined)
        if spot.path >= paths:
            arena.keep_last()
    return tree, [spot for spot in spots if spot is not None]


def _collect_tokens(calls: Sequence[Call], position: int, start: int) -> Ids:
    """Return the tokens of one call's prompt and response from `start` on."""
    call = calls[position]
    begin = call.prefix + call.suffix_ids.size
    if start >= begin:
        return call.response_ids[start - begin :]
    parts = [call.response_ids, call.suffix_ids]
    # Tokens before `missing_end` are still to be collected, from the call's ancestors.
    begin = call.prefix
    missing_end = begin
    while missing_end > start:
        assert call.parent is not None, f"call {call.index} shares {missing_end} tokens with no call"
        call = calls[call.parent]
        for ids, first_position in (
            (call.response_ids, call.prefix + call.suffix_ids.size),
            (call.suffix_ids, call.prefix),
        ):
            if missing_end > first_position:
                parts.append(ids[: missing_end - first_position])
                missing_end = first_position
        begin = missing_end
    joined = np.concatenate(parts[::-1], dtype=np.int32)
    return joined[start - begin :]


def find_continued(
    calls: Sequence[Call], tree: PrefixTree, spots: Sequence[Spot], members: Sequence[int]
) -> dict[int, Spot | None]:
    """Return for each member the end of the longest other member that it continues, or None if there is none.

    A member continues another if its prompt begins with the other's prompt and response. Members with the same end have
    the same tokens.

    Args:
        spots: For each call, the place in the tree where its tokens end.
        members: Indexes of the calls to compare.
    """
    stops_by_path: dict[int, list[int]] = {}
    for position in members:
        stops_by_path.setdefault(spots[position].path, []).append(spots[position].stop)
    for stops in stops_by_path.values():
        stops.sort()
    continued_ends: dict[int, Spot | None] = {}
    for position in members:
        path, limit = spots[position].path, spots[position].stop - calls[position].response_ids.size
        continued_ends[position] = None
        while path > 0:  # towards the root, until a member ends on the path within the prompt
            stops = stops_by_path.get(path, [])
            count = bisect_right(stops, limit)
            if count:
                continued_ends[position] = Spot(path, stops[count - 1])
                break
            path, start = tree.parent(path)
            limit = min(limit, start)
    return continued_ends
