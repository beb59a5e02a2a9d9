"""Rows: all sequences of the engine, in pools by length. StepScheduler: the plan of the next step.

Invariant: a row stays in the smallest length class that fitted its last placement and moves up when outgrown, so memory
is at most about twice the need of the tokens. Cached prefixes are evicted, least recently used first, to stay within a
budget of bytes and rows. Calls are admitted in order of arrival. Generating rows never wait for other calls, and a step
adds at most `step_tokens` prompt tokens. A new call reuses every prefix cached in a row or computed in the same step.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from ajet.engine.contract import TokenRequest
from ajet.engine.draws import hash_draw_key
from ajet.engine.streams import TokenStream
from ajet.engine.transformers.plan import Piece
from ajet.engine.transformers.pool import Row, RowPool, Shape

_SMALLEST = 64


def capacity_class(tokens: int) -> int:
    """Return the first of 64, 96, 128, 192, 256, 384, … with room for `tokens`."""
    size = _SMALLEST
    while size < tokens:  # in turn by 3/2 and 4/3, which is a factor of 2 in two steps
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


class Rows:
    """Places sequences in pools, finds prefixes they share, and evicts cached ones."""

    def __init__(self, shape: Shape, *, max_rows: int, max_bytes: int) -> None:
        self._shape = shape
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.pools: dict[int, RowPool] = {}
        self.clock = 0

    @property
    def active(self) -> list[Row]:
        """The generating rows, in the order of computation."""
        return [row for pool in self.pools.values() for row in pool.rows[: pool.active] if row]

    def shared(self, prompt: Any, adapter: str | None = None) -> tuple[int, Row | None]:
        """Return the longest prefix of `prompt` [P] in any row of the adapter, as (number of tokens, row).

        Tokens count whose keys and values are computed, or will be after the planned step. Without a row: (0, None).
        """
        best: tuple[int, Row | None] = (0, None)
        for pool in self.pools.values():
            shared_of_pool = pool.shared(prompt, adapter)
            if shared_of_pool[0] > best[0]:
                best = shared_of_pool
        return best

    def expect(self, rooms: list[int]) -> None:
        """Reserve memory at once for rows about to be placed.

        Args:
            rooms: for each row, its capacity in tokens.
        """
        for size, count in Counter(capacity_class(room) for room in rooms).items():
            pool = self._open_pool(size)
            pool.reserve(pool.active + count)

    def place(self, ids: Any, room: int, adapter: str | None = None) -> Row:
        """Create an active row with the given ids, nothing computed, in a pool class with capacity for `room`
        tokens."""
        pool = self._open_pool(room)
        slot = self._empty_boundary_slot(pool)
        row = Row(pool, slot, known=len(ids), used=self.clock, adapter=adapter)
        pool.rows[slot] = row
        pool.active += 1
        pool.tokens[slot, : len(ids)] = ids
        pool.tokens[slot, len(ids) :] = -1
        return row

    def revive(self, row: Row, ids: Any, shared: int) -> None:
        """Reactivate a cached row with new `ids`, of which the first `shared` are already computed."""
        pool = row.pool
        pool.swap(row.slot, pool.active)
        pool.active += 1
        row.known, row.computed, row.used = len(ids), shared, self.clock
        pool.tokens[row.slot, : len(ids)] = ids
        pool.tokens[row.slot, len(ids) :] = -1

    def grow(self, row: Row) -> None:
        """Move an active row to the next larger class."""
        old_pool, slot = row.pool, row.slot
        pool = self._open_pool(old_pool.capacity + 1)
        target = self._empty_boundary_slot(pool)
        computed = row.computed
        pool.keys[:, target, :, :computed] = old_pool.keys[:, row.slot, :, :computed]
        pool.values[:, target, :, :computed] = old_pool.values[:, row.slot, :, :computed]
        pool.tokens[target] = -1
        pool.tokens[target, : row.known] = row.ids
        pool.rows[target] = row
        pool.active += 1
        slot = row.slot
        old_pool.swap(slot, old_pool.active - 1)
        old_pool.rows[old_pool.active - 1] = None
        old_pool.tokens[old_pool.active - 1] = -1
        old_pool.active -= 1
        row.pool, row.slot = pool, target

    def retire(self, rows: list[Row]) -> None:
        """Mark rows as finished. They stay cached as prefixes until evicted."""
        for row in sorted(rows, key=lambda r: -r.slot):
            row.call, row.used = None, self.clock
            pool = row.pool
            pool.swap(row.slot, pool.active - 1)
            pool.active -= 1
        self._trim_prefixes()

    def forget(self) -> None:
        """Drop all computed keys and values, after a change of weights or to free memory.

        Active rows stay and are computed again.
        """
        for pool in list(self.pools.values()):
            if not pool.active:
                del self.pools[pool.capacity]
                continue
            for slot, row in enumerate(pool.rows):
                if row and slot < pool.active:
                    row.computed = row.planned = 0
                elif row:
                    pool.rows[slot] = None
                    pool.tokens[slot] = -1

    def _open_pool(self, room: int) -> RowPool:
        """Return the pool of the smallest class with room for that many tokens, created on first use."""
        size = capacity_class(room)
        if size not in self.pools:
            self.pools[size] = RowPool(self._shape, size)
            self.pools = dict(sorted(self.pools.items()))
        return self.pools[size]

    def _empty_boundary_slot(self, pool: RowPool) -> int:
        """Return the first slot behind the pool's active ones, emptied."""
        slot = pool.active
        if slot < len(pool.rows) and pool.rows[slot] is None:
            return slot
        free = pool.free_slot()
        if free is None:
            free = len(pool.rows)
            pool.reserve(max(4, free + max(4, free // 2)))
        if free != slot:
            pool.swap(slot, free)
        return slot

    def _trim_prefixes(self) -> None:
        """Evict cached rows, least recently used first, until rows and bytes are within the budget."""
        prefix_rows = [row for pool in self.pools.values() for row in pool.rows[pool.active :] if row]
        prefix_rows.sort(key=lambda row: row.used)
        rows = len(prefix_rows) + sum(pool.active for pool in self.pools.values())
        tokens = sum(row.pool.capacity for row in [*prefix_rows, *self.active])
        for row in prefix_rows:
            if rows <= self._max_rows and tokens * self._shape.token_bytes <= self._max_bytes:
                break
            row.pool.rows[row.slot] = None
            row.pool.tokens[row.slot] = -1
            rows -= 1
            tokens -= row.pool.capacity
        for pool in [pool for pool in self.pools.values() if not any(pool.rows)]:
            del self.pools[pool.capacity]


MIN_SHARED_PREFIX = 16
"""Shorter shared prefixes are recomputed: a copy costs about as much."""
AHEAD = 64
"""Reply tokens reserved at the start; longer replies move to a larger row later."""


@dataclass(slots=True, eq=False)
class InflightRequest:
    """A request from its arrival until its last token."""

    request: TokenRequest
    stream: TokenStream
    limit: int
    """Maximum number of reply tokens: the request's own, or the rest of the context."""
    draws: int = 0
    row: Row | None = None
    drawn: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logprobs_unit: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = hash_draw_key(self.request.draws)


class StepScheduler:
    """Turns waiting calls and active rows into the pieces of a step."""

    def __init__(self, rows: Rows, *, max_num_seqs: int, step_tokens: int) -> None:
        self._rows = rows
        self._max = max_num_seqs
        self._step_tokens = step_tokens
        self.waiting: deque[InflightRequest] = deque()

    def plan(self) -> tuple[list[Piece], list[tuple[Row, Row]]]:
        """Plan the next step.

        Returns:
            The pieces, and (follower, leader) for each row whose complete prompt the leader computes in the same step.
            A follower samples from the leader's logits and gets a copy of its keys and values.
        """
        self._rows.clock += 1
        pieces: list[Piece] = []
        budget = self._step_tokens
        active = self._rows.active
        for row in active:
            row.depth = 0
        for row in active:
            if row.known > row.pool.capacity:
                raise AssertionError("a row was not moved before it was full")
            length = min(row.known - row.computed, max(budget, 1))
            budget -= length if length > 1 else 0
            pieces.append(self._make_piece(row, row.computed, length, None))
        followers: list[tuple[Row, Row]] = []
        count = len(active)
        self._rows.expect([_count_room(call) for call in islice(self.waiting, self._max - count)])
        while self.waiting and count < self._max and budget > 0:
            call = self.waiting.popleft()
            budget -= self._admit_call(call, budget, pieces, followers)
            count += 1
        return pieces, followers

    def _make_piece(self, row: Row, start: int, length: int, source: Row | None) -> Piece:
        """Return a row's part in the step, and note in the row how many tokens are computed after it."""
        row.planned, row.used = start + length, self._rows.clock
        return Piece(row, start, length, source)

    def _admit_call(
        self, call: InflightRequest, budget: int, pieces: list[Piece], followers: list[tuple[Row, Row]]
    ) -> int:
        """Assign a row to the call, and return the number of budget tokens used in the step."""
        prompt = np.ascontiguousarray(call.request.prompt_ids, dtype=np.int32)
        size = len(prompt)
        row_length, adapter = _count_room(call), call.request.adapter
        shared, prefix_row = self._rows.shared(prompt, adapter)
        if shared < MIN_SHARED_PREFIX or prefix_row is None:
            shared, prefix_row = 0, None
        # A cached row with the prefix is taken over, if its call has ended and the new tokens fit.
        if prefix_row is not None and prefix_row.call is None and row_length <= prefix_row.pool.capacity:
            start = min(shared, size - 1)  # the last token is always computed, for its logits
            self._rows.revive(prefix_row, prompt, start)
            row, source = prefix_row, None
        # The complete prompt is computed in this very step for another call: the new one follows it.
        elif prefix_row is not None and shared == size == prefix_row.known and prefix_row.computed < size:
            row = self._rows.place(prompt, row_length, adapter)
            row.call = call
            row.planned = 0
            call.row = row
            followers.append((row, prefix_row))
            return 0
        else:
            start = min(shared, size - 1)
            row, source = self._rows.place(prompt, row_length, adapter), prefix_row
        row.call = call
        call.row = row
        row.depth = 0
        if source is not None and source.computed >= start:  # else the prefix is copied within the step
            _copy_prefix(source, row, start)
            source = None
        if source is not None:
            row.depth = source.depth + 1
        length = min(size - start, budget)
        pieces.append(self._make_piece(row, start, length, source))
        return length


def _count_room(call: InflightRequest) -> int:
    """Return the tokens for which a call's row is placed at first: its prompt and the beginning of its reply."""
    return len(call.request.prompt_ids) + min(call.limit, AHEAD)


def _copy_prefix(source: Row, into: Row, length: int) -> None:
    """Copy the first `length` keys and values of a row, over all layers."""
    for name in ("keys", "values"):
        origin, target = getattr(source.pool, name), getattr(into.pool, name)
        target[:, into.slot, :, :length] = origin[:, source.slot, :, :length]
    into.computed = length


def copy_to_followers(pairs: list[tuple[Row, Row]]) -> None:
    """Copy the leader's keys and values to its followers after the step, all of one leader at once."""
    by_leader: dict[Any, list[Row]] = {}
    for follower, leader in pairs:
        by_leader.setdefault((leader, follower.pool), []).append(follower)
    for (leader, pool), rows in by_leader.items():
        slots = [row.slot for row in rows]
        length = leader.computed if leader.computed < rows[0].known else rows[0].known
        for name in ("keys", "values"):
            origin, target = getattr(leader.pool, name), getattr(pool, name)
            target[:, slots, :, :length] = origin[:, leader.slot, :, :length].unsqueeze(1)
        for row in rows:
            row.computed = row.planned = length
