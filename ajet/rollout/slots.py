"""Slots: at most so many episodes at a time, first come first served.

Invariant: `live`, the number of episodes that run or are about to take a free slot, never dips while others wait; a
deterministic rollout admits its requests by it. All of it happens on the rollout's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Slots:
    """For one play of `total` episodes."""

    def __init__(self, limit: int, total: int, on_live: Callable[[int], None] | None = None) -> None:
        self._free = self._limit = limit
        self._remaining = total
        self._queue: deque[asyncio.Future[None]] = deque()
        self._on_live = on_live
        self._say()

    @property
    def live(self) -> int:
        """Episodes that run or are about to."""
        return min(self._limit, self._remaining)

    def ask(self) -> asyncio.Future[None]:
        """Done once the caller holds a slot. Cancel it to give up waiting; either way call `leave` once."""
        seat: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(seat)
        self._seat()
        return seat

    def leave(self, seat: asyncio.Future[None]) -> None:
        """The episode has ended, or never began."""
        self._remaining -= 1
        if seat.done() and not seat.cancelled():
            self._free += 1
        else:
            seat.cancel()
        self._say()
        self._seat()

    def _seat(self) -> None:
        while self._free and self._queue:
            seat = self._queue.popleft()
            if not seat.done():
                self._free -= 1
                seat.set_result(None)

    def _say(self) -> None:
        if self._on_live is not None:
            self._on_live(self.live)
