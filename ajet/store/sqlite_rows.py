"""Reads and writes rows of a SQLite store and checks each value; another program may have changed the file.

A position is a task's place in the training order (column `place`). Invariant: an invalid value raises only
DamagedRowError; an unimportant row is skipped. `SqliteEpisodes` and `SqlitePositions` work within the caller's
transaction. An episode is returned unchanged or as `AlteredEpisodeError`; an existing uuid is not inserted again.
Updates by lease compare the fence. Time is the machine's clock; if the clock was set back by more than a lease, leases
from the future end.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from ajet.record.episode_codec import decode, encode
from ajet.record.files import parse_json
from ajet.record.plain_json import dumps
from ajet.record.secrets import Redactor
from ajet.schema.errors import AjetError
from ajet.store.contract import Kept, Lease, LeaseLostError
from ajet.store.digest import AlteredEpisodeError, digest_episode, explain_alteration
from ajet.store.group_check import quote
from ajet.store.outage import Outage
from ajet.store.shared import EXPIRED, AnnouncedPolicy, Policy, Role, StoreMember


class DamagedRowError(AjetError):
    """A row has values that ajet never writes: another program changed the file."""


def read_count(name: str, row: tuple[Any, ...] | None) -> int:
    """Return the counter `name` from its row of the table `counts`. Raises DamagedRowError unless it is an integer."""
    if row is None or not isinstance(row[0], int):
        raise DamagedRowError(f"the value of the counter {name!r} is {quote(row and row[0])}, not an integer")
    return row[0]


def read_position(row: tuple[Any, ...]) -> int:
    """Return the position in the first column of a row. Raises DamagedRowError unless it is an integer."""
    if not isinstance(row[0], int):
        raise DamagedRowError(f"the position of an attempt is {quote(row[0])}, not an integer")
    return row[0]


def read_reasons(text: object) -> list[str]:
    """Return the reasons of a position's failed attempts. Unreadable reasons become one entry that says so."""
    try:
        reasons = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        reasons = None
    if isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons):
        return reasons
    return [f"the reasons of its earlier failures cannot be read: {quote(text)}"]


def read_member(row: tuple[Any, ...], now: float) -> StoreMember | None:
    """Return the member in a row (role, name, seen, joined, told, leases), or None for an invalid row.

    `seen` and `joined` are the times of the last heartbeat and of the registration, `told` is the member's details.
    """
    role, name, seen, joined, details, leases = row
    try:
        parsed = parse_json(details) if isinstance(details, str) else None
    except ValueError:
        return None
    if not (isinstance(name, str) and role in get_args(Role) and isinstance(parsed, dict)):
        return None
    if not (_is_time(seen) and _is_time(joined)):
        return None
    return StoreMember(role, name, now - seen, now - joined, leases, parsed)


def read_announced(row: tuple[Any, ...], now: float) -> AnnouncedPolicy:
    """Return the announced policy in a row: its JSON text, the trainer's number and the time.

    Raises DamagedRowError for values that ajet never writes.

    Args:
        now: Present time in seconds since the epoch.
    """
    text, trainer, announced_at = row
    try:
        policy = Policy(**parse_json(text))
    except (TypeError, ValueError) as error:
        raise DamagedRowError(f"the announced policy cannot be read: {quote(text)}") from error
    texts = (policy.run, policy.weights, policy.lineage, policy.tokenizer, policy.template)
    numbers = (policy.step, trainer, 0 if policy.below is None else policy.below)
    if not (
        all(isinstance(field, str) for field in texts)
        and all(isinstance(number, int) for number in numbers)
        and isinstance(policy.told, dict)
        and _is_time(announced_at)
    ):
        raise DamagedRowError(f"the announced policy cannot be read: {quote(text)}")
    return AnnouncedPolicy(policy, trainer, now - announced_at)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


Row = tuple[Any, ...]


class SqliteEpisodes:
    """Reads and writes the episodes of the store in the file `path`."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        self._path, self._redact = path, redact

    def encode_rows(self, lease: Lease, ends: Iterable[Kept]) -> list[Row]:
        """Return rows of the table `ends` for episodes, with digests.

        The encoding is slow, so it is called outside the transaction.

        Args:
            lease: Lease of the episodes' position.
            ends: The episodes.
        """
        rows = []
        for attempt in ends:
            row, arrays = encode(attempt.episode)
            columns = (
                attempt.episode.uuid,
                lease.order,
                attempt.alone,
                attempt.ended_by,
                self._redact.row(row),
                arrays,
            )
            rows.append((*columns, _digest_row(*columns)))
        return rows

    @staticmethod
    def put(base: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Insert rows made by `encode_rows`. Rows with a stored uuid are skipped."""
        base.executemany("INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def load_episodes(self, base: sqlite3.Connection, order: int) -> tuple[Kept, ...]:
        """Return the episodes of a position, as they were put. Raises AlteredEpisodeError."""
        episodes = []
        for episode in self.iterate_episodes(base, order):
            if isinstance(episode, AlteredEpisodeError):
                raise episode
            episodes.append(episode)
        return tuple(episodes)

    def iterate_episodes(self, base: sqlite3.Connection, order: int) -> Iterator[Kept | AlteredEpisodeError]:
        """Yield the episodes of a position, and for each changed episode the error instead."""
        query = "SELECT uuid, place, alone, ended_by, line, arrays, seal FROM ends WHERE place = ? ORDER BY rowid"
        for uuid, stored_order, is_alone, ended_by, line, arrays, seal in base.execute(query, (order,)).fetchall():
            try:
                with explain_alteration(order, uuid, str(self._path), ended_by):
                    if seal != _digest_row(uuid, stored_order, is_alone, ended_by, line, arrays):
                        raise AlteredEpisodeError
                    attempt = Kept(decode(json.loads(line), arrays), bool(is_alone), ended_by)
            except AlteredEpisodeError as altered:
                yield altered
            else:
                yield attempt


def _digest_row(uuid: str, order: int, alone: Any, ended_by: str, line: str, arrays: bytes) -> str:
    """Return the digest of a row of the table `ends`."""
    # A model's text may contain lone surrogates, which plain UTF-8 refuses.
    return digest_episode(order, uuid, bool(alone), ended_by, line.encode("utf-8", "surrogatepass"), arrays)


class SqlitePositions:
    """Leases positions for `seconds`. After `limit` failed attempts a position is dead: it is leased no more.

    A fence is the number of a lease, by which a stale lease is recognised.
    """

    def __init__(self, seconds: float, limit: int, outage: Outage) -> None:
        self._lease_seconds = seconds
        self._max_attempts = limit
        self._outage = outage

    def find_free(self, base: sqlite3.Connection, count: int, below: int | None) -> list[int]:
        """Return up to `count` free positions: those leased before first, then new ones.

        Args:
            below: New positions are returned only below this number. None: no limit.
        """
        query = "SELECT place FROM positions WHERE state = 'waiting' AND place >= 0 ORDER BY place LIMIT ?"
        orders = [int(row[0]) for row in base.execute(query, (count,))]
        new_count = count - len(orders)
        if below is not None:
            new_count = min(new_count, max(0, below - fetch_count(base, "next")))
        # The counter `next` is raised, so that no other process gets the new positions.
        first_new = fetch_count(base, "next", new_count)
        return [*orders, *range(first_new, first_new + new_count)]

    def take(self, base: sqlite3.Connection, order: int, holder: str, trainer: int) -> int:
        """Lease a position and return the lease's number (fence).

        Args:
            holder: Name of the process that leases.
            trainer: Number of the trainer, 0 for other processes.
        """
        fence = fetch_count(base, "fence", 1) + 1
        base.execute(
            "INSERT INTO positions (place, state, fence, until, since, seconds, holder, trainer) "
            "VALUES (:place, 'leased', :fence, :until, :since, :seconds, :holder, :trainer) "
            "ON CONFLICT (place) DO UPDATE SET state = 'leased', fence = :fence, until = :until, since = :since, "
            "seconds = :seconds, holder = :holder, trainer = :trainer",
            {
                "place": order,
                "fence": fence,
                "until": (now := time.time()) + self._lease_seconds,
                "since": now,
                "seconds": self._lease_seconds,
                "holder": holder,
                "trainer": trainer,
            },
        )
        return fence

    def prolong(self, base: sqlite3.Connection, lease: Lease) -> None:
        """Extend a lease to the full lease time from now on. Raises LeaseLostError."""
        update_leased(base, lease, "until = ?, seconds = ?", time.time() + self._lease_seconds, self._lease_seconds)

    def expire(self, base: sqlite3.Connection) -> None:
        """End expired leases, except a trainer's, and count each as a failed attempt.

        For one lease time after an outage no lease expires, so that processes can renew their leases first.
        """
        if self._outage.ended_within(self._lease_seconds):
            return
        now = time.time()
        expired = (
            "SELECT place FROM positions WHERE state = 'leased' AND trainer = 0 "
            # The upper bound: after the clock was set back, a lease that ends far in the future must not stay for ever.
            "AND until NOT BETWEEN ? AND ? + 2 * MAX(seconds, 1)"
        )
        for (order,) in base.execute(expired, (now, now)).fetchall():
            self.record_failure(base, order, EXPIRED)

    @staticmethod
    def oldest_age(base: sqlite3.Connection, state: str, but: Collection[int] = ()) -> float | None:
        """Return the seconds since the last lease or close of the position that has been in `state` for longest.

        Args:
            but: Positions to leave out.

        Returns:
            None if no position is in the state.
        """
        query = (
            "SELECT place, since FROM positions WHERE state = ? AND typeof(since) IN ('real', 'integer') ORDER BY since"
        )
        oldest = next((since for order, since in base.execute(query, (state,)) if order not in but), None)
        return None if oldest is None else max(0.0, time.time() - float(oldest))

    def record_failure(self, base: sqlite3.Connection, order: int, reason: str, *, dead: bool = False) -> None:
        """Count a failed attempt at a position, and free the position or make it dead after the last attempt.

        Args:
            dead: True to allow no further attempt.
        """
        (stored,) = base.execute("SELECT reasons FROM positions WHERE place = ?", (order,)).fetchone()
        reasons = [*read_reasons(stored), reason]
        state = "waiting" if len(reasons) < self._max_attempts and not dead else "dead"
        update = "UPDATE positions SET state = ?, reasons = ? WHERE place = ?"
        base.execute(update, (state, dumps(reasons), order))


def update_leased(base: sqlite3.Connection, lease: Lease, what: str, *values: float) -> None:
    """Change columns of the position of a valid lease. Raises LeaseLostError.

    Args:
        what: assignments in SQL, with a `?` for each of `values`.
    """
    update = f"UPDATE positions SET {what} WHERE place = ? AND state = 'leased' AND fence = ?"
    if not base.execute(update, (*values, lease.order, lease.fence)).rowcount:
        raise LeaseLostError(f"the lease of position {lease.order} is not valid any more (lease number {lease.fence})")


def fetch_count(base: sqlite3.Connection, name: str, more: int = 0) -> int:
    """Add `more` to the counter `name`, and return the value before the addition."""
    value = read_count(name, base.execute("SELECT value FROM counts WHERE name = ?", (name,)).fetchone())
    if more:
        base.execute("UPDATE counts SET value = value + ? WHERE name = ?", (more, name))
    return value
