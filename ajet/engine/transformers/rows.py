"""All rows, in pools by length.

Invariant: a row lies in the smallest pool class it was last placed for and moves up when it outgrows it, so memory is
at most about twice what the tokens need, whatever the lengths; rows that only keep a prefix give way, least recently
used first, to a budget of bytes and of rows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ajet.engine.transformers.pool import Pool, Row, Shape

_SMALLEST = 64


def capacity_class(tokens: int) -> int:
    """64, 96, 128, 192, 256, 384, … the first that holds `tokens`."""
    size = _SMALLEST
    while size < tokens:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


class Rows:
    """Places rows, finds shared prefixes, lets go of what is not needed."""

    def __init__(self, shape: Shape, *, max_rows: int, max_bytes: int) -> None:
        self._shape, self._max_rows, self._max_bytes = shape, max_rows, max_bytes
        self.pools: dict[int, Pool] = {}
        self.clock = 0

    @property
    def active(self) -> list[Row]:
        """The rows that generate, in the order in which a step computes them."""
        return [row for pool in self.pools.values() for row in pool.rows[: pool.active] if row]

    def shared(self, prompt: Any, adapter: str | None = None) -> tuple[int, Row | None]:
        """The longest prefix of `prompt` that some row of `adapter` has or will have after the step being planned."""
        best: tuple[int, Row | None] = (0, None)
        for pool in self.pools.values():
            found = pool.shared(prompt, adapter)
            if found[0] > best[0]:
                best = found
        return best

    def expect(self, rooms: list[int]) -> None:
        """Make place at once for rows that will be placed next, with these rooms."""
        for size, count in Counter(capacity_class(room) for room in rooms).items():
            pool = self._pool(size)
            pool.reserve(pool.active + count)

    def place(self, ids: Any, room: int, adapter: str | None = None) -> Row:
        """A new active row with these ids and nothing computed, in a class with place for `room` tokens in all."""
        pool = self._pool(room)
        slot = self._boundary(pool)
        row = Row(pool, slot, known=len(ids), used=self.clock, adapter=adapter)
        pool.rows[slot] = row
        pool.active += 1
        pool.tokens[slot, : len(ids)] = ids
        pool.tokens[slot, len(ids) :] = -1
        return row

    def revive(self, row: Row, ids: Any, shared: int) -> None:
        """Make a kept row active again, as `ids`, of which it has the first `shared`."""
        pool = row.pool
        pool.swap(row.slot, pool.active)
        pool.active += 1
        row.known, row.computed, row.used = len(ids), shared, self.clock
        pool.tokens[row.slot, : len(ids)] = ids
        pool.tokens[row.slot, len(ids) :] = -1

    def grow(self, row: Row) -> None:
        """Move an active row to the next class."""
        old, slot = row.pool, row.slot
        pool = self._pool(old.capacity + 1)
        target = self._boundary(pool)
        n = row.computed
        pool.keys[:, target, :, :n] = old.keys[:, row.slot, :, :n]
        pool.values[:, target, :, :n] = old.values[:, row.slot, :, :n]
        pool.tokens[target] = -1
        pool.tokens[target, : row.known] = row.ids
        pool.rows[target] = row
        pool.active += 1
        slot = row.slot
        old.swap(slot, old.active - 1)
        old.rows[old.active - 1] = None
        old.tokens[old.active - 1] = -1
        old.active -= 1
        row.pool, row.slot = pool, target

    def retire(self, rows: list[Row]) -> None:
        """These no longer generate; they keep their prefixes until somebody else needs the place."""
        for row in sorted(rows, key=lambda r: -r.slot):
            row.call, row.used = None, self.clock
            pool = row.pool
            pool.swap(row.slot, pool.active - 1)
            pool.active -= 1
        self._trim()

    def forget(self) -> None:
        """Keep nothing that was computed: the weights have changed, or the memory is needed. Active rows stay, to be
        computed anew."""
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

    def _pool(self, room: int) -> Pool:
        size = capacity_class(room)
        if size not in self.pools:
            self.pools[size] = Pool(self._shape, size)
            self.pools = dict(sorted(self.pools.items()))
        return self.pools[size]

    def _boundary(self, pool: Pool) -> int:
        """The first slot behind the pool's active ones, emptied."""
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

    def _trim(self) -> None:
        """Drop kept rows, the least recently used first, while there are too many rows or bytes."""
        kept = [row for pool in self.pools.values() for row in pool.rows[pool.active :] if row]
        kept.sort(key=lambda row: row.used)
        rows = len(kept) + sum(pool.active for pool in self.pools.values())
        tokens = sum(row.pool.capacity for row in [*kept, *self.active])
        for row in kept:
            if rows <= self._max_rows and tokens * self._shape.token_bytes <= self._max_bytes:
                break
            row.pool.rows[row.slot] = None
            row.pool.tokens[row.slot] = -1
            rows -= 1
            tokens -= row.pool.capacity
        for pool in [pool for pool in self.pools.values() if not any(pool.rows)]:
            del self.pools[pool.capacity]
