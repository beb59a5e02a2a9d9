"""A ledger in memory alone: the checkpoint has what it says."""

from __future__ import annotations

from ajet.store.run_store import PositionQueue


class ToyStore:
    opened_at: list = []
    """Per run: what the checkpoint said."""

    def __init__(self, folder, *, ledger="", at=None, redact=None, usable=bool):
        ToyStore.opened_at.append(at)
        self._positions, self._kept, self._closed = PositionQueue(at), {}, set()

    def lease(self, count):
        return self._positions.take(count)

    def bring(self):
        return self._positions.bring()

    def lease_kept(self):
        return []

    def put(self, lease, *kept):
        self._positions.require(lease)
        self._kept.setdefault(lease.order, []).extend(kept)

    def close(self, lease):
        self._positions.require(lease)
        self._closed.add(lease.order)

    def closed(self):
        return [self._positions.held(order) for order in sorted(self._closed)]

    def begun(self):
        return self._positions.begun()

    def use(self, orders, step):
        self._positions.end(orders)

    def discard(self, orders, step, reason):
        self._positions.end(orders)

    def give_back(self, leases):
        for lease in leases:
            self._positions.give_back(lease)

    def commit(self):
        return {**self._positions.state(), "toy": True}

    def forget(self, step):
        """Nothing is kept."""
