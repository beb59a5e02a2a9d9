"""Positions of the training order: which are to be had, which are somebody's, which are over.

Invariant: every position below `next` that is neither leased nor waiting is over, and none is leased twice. Positions
that were brought count down from -1: they are leased or over. Pure, not thread-safe: a store holds its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ajet.store.contract import Lease, LeaseLost


class Positions:
    """The positions of the order: next, leased, waiting. Begins as `state` tells; without one, at the beginning."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._next = int(state.get("next", 0))
        self._brought = int(state.get("brought", 0))
        self._waiting = {int(order) for order in state.get("unfinished", ())}
        self._leased: dict[int, int] = {}
        self._fence = 0

    def take(self, count: int) -> list[Lease]:
        """The next ones of the order, those that wait first."""
        again = sorted(order for order in self._waiting if order >= 0)[:count]
        fresh = range(self._next, self._next + count - len(again))
        self._next = fresh.stop
        return [self._lease(order) for order in (*again, *fresh)]

    def bring(self) -> Lease:
        """Lease a position outside of the order."""
        self._brought += 1
        return self._lease(-self._brought)

    def offer(self, order: int) -> bool:
        """Let this one wait, and what lies before it and was not begun; False where it is over, or leased."""
        if order in self._leased:
            return False
        if order < 0:
            self._brought = max(self._brought, -order)
            self._waiting.add(order)
        elif order >= self._next:
            self._waiting.update(range(self._next, order + 1))
            self._next = order + 1
        return order in self._waiting

    def waits(self, order: int) -> bool:
        """Whether the position was begun and nobody holds it."""
        return order in self._waiting

    def claim(self, order: int) -> Lease:
        """Just this one, which waits."""
        return self._lease(order)

    def held(self, order: int) -> Lease:
        """The lease of one that is leased."""
        return Lease(order, self._leased[order])

    def require(self, lease: Lease) -> None:
        """Raises LeaseLost where it is not the latest of its position."""
        if self._leased.get(lease.order) != lease.fence:
            raise LeaseLost(f"position {lease.order} is not leased under number {lease.fence}")

    def end(self, orders: Iterable[int]) -> None:
        """End positions: they are over. Raises LeaseLost, and ends none, where one is not leased."""
        ending = set(orders)
        if foreign := ending - self._leased.keys():
            raise LeaseLost(f"positions {sorted(foreign)} are not leased")
        for order in ending:
            del self._leased[order]

    def give_back(self, lease: Lease) -> None:
        """Somebody else may have it."""
        self.require(lease)
        del self._leased[lease.order]
        self._waiting.add(lease.order)

    def begun(self) -> list[int]:
        """The positions of the order that are leased, or wait."""
        return sorted(order for order in self._leased.keys() | self._waiting if order >= 0)

    def state(self) -> dict[str, Any]:
        """The positions as JSON values: what is leased counts as begun, and nobody's."""
        return {"next": self._next, "unfinished": self.begun(), "brought": self._brought}

    def _lease(self, order: int) -> Lease:
        self._waiting.discard(order)
        self._fence += 1
        self._leased[order] = self._fence
        return Lease(order, self._fence)
