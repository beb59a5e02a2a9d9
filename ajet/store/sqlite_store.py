"""SqliteStore: the store of several processes on one machine.

Invariant: every change is one transaction, so a kill at any byte leaves it done or not. A use belongs to the commit
that follows it, and a commit to the one before; opened at a checkpoint, the uses of its commit and of those before it
hold, and no other. A lease ends when its time is over, whoever held it: then another gets it, under a higher fence.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.record.episode_codec import decode, encode
from ajet.record.secrets import Redactor
from ajet.schema.episode import UntrainedReason
from ajet.store.contract import Kept, Lease, LeaseLost

_TABLES = """
CREATE TABLE IF NOT EXISTS positions (
    place INTEGER PRIMARY KEY, state TEXT NOT NULL, whole INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL,
    until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS uses (place INTEGER NOT NULL, step INTEGER NOT NULL, reason TEXT, of INTEGER);
CREATE TABLE IF NOT EXISTS ends (
    uuid TEXT PRIMARY KEY, place INTEGER NOT NULL, alone INTEGER NOT NULL, ended_by TEXT NOT NULL,
    line TEXT NOT NULL, arrays BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS ends_of_place ON ends (place);
CREATE TABLE IF NOT EXISTS commits (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, earlier INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT OR IGNORE INTO counts VALUES ('next', 0), ('brought', 0), ('fence', 0), ('head', 0);
"""
"""`state` is waiting, leased, closed or over; `whole`: whether it ever was closed. `of`: the number of the commit that
a use belongs to, null for the next."""
_HOLDING = """
WITH RECURSIVE line (number) AS (
    SELECT value FROM counts WHERE name = 'head' UNION
    SELECT earlier FROM commits JOIN line USING (number) WHERE earlier > 0)
SELECT place FROM uses WHERE of IN line"""
"""Positions whose use the checkpoint knows that the store goes on from."""
PATIENCE = 60.0
"""Seconds that a transaction waits for another process's."""


class SqliteStore:
    """In the file `path`. A process that opens it `at` a checkpoint is the one that trains; others open it without."""

    def __init__(
        self,
        path: Path,
        *,
        lease_seconds: float = 3600.0,
        at: Mapping[str, Any] | None = None,
        rolls: bool = False,
        redact: Redactor | None = None,
    ) -> None:
        """`rolls`: whether this process commits: then what it opens is what the checkpoint `at` says (None: that there
        is none). Raises ValueError for a checkpoint of another store."""
        self._seconds, self._redact = lease_seconds, redact or Redactor({})
        self._lock = threading.Lock()
        self._base = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")
        self._base.executescript(_TABLES)
        if rolls:
            self._roll(at)

    def disconnect(self) -> None:
        """Let go of the file."""
        self._base.close()

    def lease(self, count: int) -> list[Lease]:
        """See the contract."""
        with self._transaction() as base:
            self._expire(base)
            asked = "SELECT place FROM positions WHERE state = 'waiting' AND place >= 0 ORDER BY place LIMIT ?"
            orders = [int(row[0]) for row in base.execute(asked, (count,))]
            first = self._count(base, "next", count - len(orders))
            return [self._leased(base, order) for order in (*orders, *range(first, first + count - len(orders)))]

    def bring(self) -> Lease:
        """See the contract."""
        with self._transaction() as base:
            return self._leased(base, -self._count(base, "brought", 1) - 1)

    def lease_kept(self) -> list[Lease]:
        """See the contract."""
        with self._transaction() as base:
            self._expire(base)
            put = "SELECT DISTINCT place FROM positions JOIN ends USING (place)"
            found = base.execute(f"{put} WHERE state = 'waiting' ORDER BY place").fetchall()
            return [self._leased(base, int(row[0])) for row in found]

    def put(self, lease: Lease, *kept: Kept) -> None:
        """See the contract."""
        ends = []
        for one in kept:
            row, arrays = encode(one.episode)
            line = self._redact.row(row)
            ends.append((one.episode.uuid, lease.order, one.alone, one.ended_by, line, arrays))
        with self._transaction() as base:
            self._require(base, lease)
            base.executemany("INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?, ?, ?)", ends)
            base.execute("UPDATE positions SET until = ? WHERE place = ?", (time.time() + self._seconds, lease.order))

    def close(self, lease: Lease) -> None:
        """See the contract."""
        with self._transaction() as base:
            self._require(base, lease)
            base.execute("UPDATE positions SET state = 'closed', whole = 1 WHERE place = ?", (lease.order,))

    def closed(self) -> list[Lease]:
        """See the contract."""
        with self._transaction() as base:
            found = base.execute("SELECT place, fence FROM positions WHERE state = 'closed' ORDER BY place").fetchall()
            return [Lease(order, fence, self._kept(base, order)) for order, fence in found]

    def begun(self) -> list[int]:
        """See the contract."""
        with self._transaction() as base:
            asked = "SELECT place FROM positions WHERE state != 'over' AND place >= 0 ORDER BY place"
            return [int(row[0]) for row in base.execute(asked)]

    def use(self, orders: Iterable[int], step: int) -> None:
        """See the contract."""
        self._end(orders, step, None)

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """See the contract."""
        self._end(orders, step, reason)

    def give_back(self, leases: Iterable[Lease]) -> None:
        """See the contract."""
        with self._transaction() as base:
            for lease in leases:
                self._require(base, lease)
                base.execute("UPDATE positions SET state = 'waiting' WHERE place = ?", (lease.order,))

    def commit(self) -> dict[str, Any]:
        """See the contract. Made before the checkpoint is there: without it, nobody opens the store at this one."""
        name = uuid.uuid4().hex
        with self._transaction() as base:
            head = self._count(base, "head", 0)
            number = base.execute("INSERT INTO commits (name, earlier) VALUES (?, ?)", (name, head)).lastrowid
            base.execute("UPDATE uses SET of = ? WHERE of IS NULL", (number,))
            base.execute("UPDATE counts SET value = ? WHERE name = 'head'", (number,))
        return {"commit": name}

    def forget(self, step: int) -> None:
        """See the contract."""
        with self._transaction() as base:
            gone = [row for row in base.execute(f"{_HOLDING} AND step <= ?", (step,)).fetchall()]
            for table in ("ends", "positions", "uses"):
                base.executemany(f"DELETE FROM {table} WHERE place = ?", gone)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")

    def _roll(self, at: Mapping[str, Any] | None) -> None:
        """Let those uses hold that the checkpoint knows, and no other."""
        with self._transaction() as base:
            number = 0
            if at is not None:
                found = base.execute("SELECT number FROM commits WHERE name = ?", (at.get("commit"),)).fetchone()
                if found is None:
                    raise ValueError(f"the checkpoint's commit {at.get('commit')} is of another store")
                number = int(found[0])
            base.execute("UPDATE counts SET value = ? WHERE name = 'head'", (number,))
            base.execute("DELETE FROM uses WHERE of IS NULL")
            base.execute(
                "UPDATE positions SET state = CASE WHEN whole THEN 'closed' ELSE 'waiting' END "
                f"WHERE state = 'over' AND place NOT IN ({_HOLDING})"
            )
            base.execute(f"UPDATE positions SET state = 'over' WHERE place IN ({_HOLDING})")

    def _expire(self, base: sqlite3.Connection) -> None:
        base.execute("UPDATE positions SET state = 'waiting' WHERE state = 'leased' AND until < ?", (time.time(),))

    def _leased(self, base: sqlite3.Connection, order: int) -> Lease:
        fence, until = self._count(base, "fence", 1) + 1, time.time() + self._seconds
        base.execute(
            "INSERT INTO positions (place, state, fence, until) VALUES (?, 'leased', ?, ?) "
            "ON CONFLICT (place) DO UPDATE SET state = 'leased', fence = excluded.fence, until = excluded.until",
            (order, fence, until),
        )
        return Lease(order, fence, self._kept(base, order))

    def _kept(self, base: sqlite3.Connection, order: int) -> tuple[Kept, ...]:
        asked = "SELECT line, arrays, alone, ended_by FROM ends WHERE place = ? ORDER BY rowid"
        found = base.execute(asked, (order,)).fetchall()
        return tuple(Kept(decode(json.loads(line), arrays), bool(alone), by) for line, arrays, alone, by in found)

    def _require(self, base: sqlite3.Connection, lease: Lease) -> None:
        found = base.execute("SELECT state, fence FROM positions WHERE place = ?", (lease.order,)).fetchone()
        if found != ("leased", lease.fence):
            raise LeaseLost(f"position {lease.order} is not leased under number {lease.fence}")

    def _end(self, orders: Iterable[int], step: int, reason: UntrainedReason | None) -> None:
        with self._transaction() as base:
            for order in set(orders):
                over = "UPDATE positions SET state = 'over' WHERE place = ? AND state IN ('leased', 'closed')"
                if not base.execute(over, (order,)).rowcount:
                    raise LeaseLost(f"position {order} is not leased")
                base.execute("INSERT INTO uses (place, step, reason) VALUES (?, ?, ?)", (order, step, reason))

    @staticmethod
    def _count(base: sqlite3.Connection, name: str, more: int) -> int:
        """The count before it grew."""
        (value,) = base.execute("SELECT value FROM counts WHERE name = ?", (name,)).fetchone()
        base.execute("UPDATE counts SET value = value + ? WHERE name = ?", (more, name))
        return int(value)
