"""The positions in a SQLite store: whose each is, until when, and how often it failed.

Invariant: everything here happens within the transaction of whoever calls; a change in the name of a lease names the
fence that it has to have. The clock is the machine's; where it was set back by more than a lease is long, leases of
that future have ended.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection

from ajet.record.plain_json import dumps
from ajet.store.contract import Lease, LeaseLost
from ajet.store.outage import Outage
from ajet.store.shared import EXPIRED
from ajet.store.sqlite_rows import read_count, read_reasons


class SqlitePositions:
    """The positions as one process takes them: for so many `seconds`; after `most` attempts that failed a position is
    dead."""

    def __init__(self, seconds: float, most: int, outage: Outage) -> None:
        self._seconds, self._most, self._outage = seconds, most, outage

    def to_be_had(self, base: sqlite3.Connection, count: int, below: int | None) -> list[int]:
        """Up to `count` free positions: those that wait, then those that nobody ever had."""
        asked = "SELECT place FROM positions WHERE state = 'waiting' AND place >= 0 ORDER BY place LIMIT ?"
        orders = [int(row[0]) for row in base.execute(asked, (count,))]
        fresh = count - len(orders)
        if below is not None:
            fresh = min(fresh, max(0, below - counted(base, "next")))
        first = counted(base, "next", fresh)
        return [*orders, *range(first, first + fresh)]

    def take(self, base: sqlite3.Connection, order: int, holder: str, trainer: int) -> int:
        """The fence under which it is the `holder`'s now. `trainer`: its number, 0 for anybody else."""
        fence = counted(base, "fence", 1) + 1
        base.execute(
            "INSERT INTO positions (place, state, fence, until, since, seconds, holder, trainer) "
            "VALUES (:place, 'leased', :fence, :until, :since, :seconds, :holder, :trainer) "
            "ON CONFLICT (place) DO UPDATE SET state = 'leased', fence = :fence, until = :until, since = :since, "
            "seconds = :seconds, holder = :holder, trainer = :trainer",
            {
                "place": order,
                "fence": fence,
                "until": (now := time.time()) + self._seconds,
                "since": now,
                "seconds": self._seconds,
                "holder": holder,
                "trainer": trainer,
            },
        )
        return fence

    def prolong(self, base: sqlite3.Connection, lease: Lease) -> None:
        """Prolong a lease as from now. Raises LeaseLost."""
        change(base, lease, "until = ?, seconds = ?", time.time() + self._seconds, self._seconds)

    def expire(self, base: sqlite3.Connection) -> None:
        """End the leases whose time is over. A trainer's end with the next one. After an outage their holders get the
        time to renew them first."""
        if self._outage.ended_within(self._seconds):
            return
        now = time.time()
        ended = (
            "SELECT place FROM positions WHERE state = 'leased' AND trainer = 0 "
            "AND until NOT BETWEEN ? AND ? + 2 * MAX(seconds, 1)"
        )
        for (order,) in base.execute(ended, (now, now)).fetchall():
            self.failed(base, order, EXPIRED)

    @staticmethod
    def oldest(base: sqlite3.Connection, state: str, but: Collection[int] = ()) -> float | None:
        """Seconds since the first of those in that state came there; None where none is, or none knows."""
        asked = (
            "SELECT place, since FROM positions WHERE state = ? AND typeof(since) IN ('real', 'integer') ORDER BY since"
        )
        found = next((since for place, since in base.execute(asked, (state,)) if place not in but), None)
        return None if found is None else max(0.0, time.time() - float(found))

    def failed(self, base: sqlite3.Connection, order: int, reason: str, *, dead: bool = False) -> None:
        """Count one more failed attempt at a position. `dead`: there is to be no other."""
        (found,) = base.execute("SELECT reasons FROM positions WHERE place = ?", (order,)).fetchone()
        reasons = [*read_reasons(found), reason]
        state = "waiting" if len(reasons) < self._most and not dead else "dead"
        changed = "UPDATE positions SET state = ?, reasons = ? WHERE place = ?"
        base.execute(changed, (state, dumps(reasons), order))


def change(base: sqlite3.Connection, lease: Lease, what: str, *values: float) -> None:
    """Change the position of a lease that counts. Raises LeaseLost."""
    changed = f"UPDATE positions SET {what} WHERE place = ? AND state = 'leased' AND fence = ?"
    if not base.execute(changed, (*values, lease.order, lease.fence)).rowcount:
        raise LeaseLost(f"position {lease.order} is not leased under number {lease.fence}")


def counted(base: sqlite3.Connection, name: str, more: int = 0) -> int:
    """A count of the store, before it grew."""
    value = read_count(name, base.execute("SELECT value FROM counts WHERE name = ?", (name,)).fetchone())
    if more:
        base.execute("UPDATE counts SET value = value + ? WHERE name = ?", (more, name))
    return value
