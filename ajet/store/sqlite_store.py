"""SqliteStore: the store of several processes on one machine.

A position is a task's place in the training order. Invariant: every change is one transaction, so a kill leaves the
change done or undone. A use belongs to the next commit, and each commit refers to the previous one; a store opened at a
checkpoint keeps only the uses of the checkpoint's commit and earlier commits. An expired lease passes to another
process under a higher fence (`SqlitePositions`). A position with a changed episode (`SqliteEpisodes`) becomes a dead
letter.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from loguru import logger

from ajet.record.plain_json import dumps
from ajet.record.secrets import Redactor
from ajet.schema.episode import UntrainedReason
from ajet.store.contract import Kept, Lease, LeaseLostError
from ajet.store.digest import AlteredEpisodeError
from ajet.store.group_check import LONGEST_VALUE
from ajet.store.outage import Outage
from ajet.store.shared import (
    NONE,
    AnnouncedPolicy,
    DeadLetter,
    Policy,
    Role,
    StoreDepths,
    StoreMember,
    StoreOptions,
    Usable,
    fenced_trainer_error,
    other_run_error,
    other_store_error,
    other_version_error,
)
from ajet.store.sqlite_rows import (
    DamagedRowError,
    SqliteEpisodes,
    SqlitePositions,
    fetch_count,
    read_announced,
    read_member,
    read_reasons,
    update_leased,
)
from ajet.store.sqlite_tables import (
    VERSION,
    bound_statements,
    connect,
    damaged_file,
    explain_error,
    is_mistake,
    read_version,
)

BUSY_TIMEOUT = 1.0
"""Seconds SQLite waits for another process's transaction; afterwards the interruptible outage waits."""
LINE = """
WITH RECURSIVE line (number) AS (
    SELECT value FROM counts WHERE name = 'head' UNION
    SELECT earlier FROM commits JOIN line USING (number) WHERE earlier > 0)
"""
"""SQL: the numbers of the commits that count, from the latest (`head`) back to the first."""
_HOLDING = f"{LINE} SELECT place FROM uses WHERE of IN line AND NOT again"
"""SQL: positions that a step of the current line of checkpoints used for the last time."""
_REUSED = f"""{LINE} SELECT place, step FROM uses JOIN positions USING (place)
WHERE again AND state = 'closed' AND (of IS NULL OR of IN line) ORDER BY step"""
"""SQL: the uses of reusable positions that count, with the step."""
STATES = ("waiting", "leased", "closed", "over", "dead")
P = ParamSpec("P")
T = TypeVar("T")


def _outlast_outage(
    method: Callable[Concatenate[SqliteStore, P], T],
) -> Callable[Concatenate[SqliteStore, P], T]:
    """Repeat a method of the store while its file is unreachable.

    The method must be one transaction with reusable arguments, so that a repeat does no harm.
    """

    @wraps(method)
    def repeated(store: SqliteStore, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.outage.outlast(lambda: method(store, *args, **kwargs))

    return repeated


class SqliteStore:
    """The store in the file `path`. The process that opens it with `rolls` is the trainer."""

    def __init__(self, path: Path, opener: StoreOptions | None = None) -> None:
        """Open the file. Raises UserError if it is damaged, or belongs to another checkpoint or run."""
        options = opener or StoreOptions()
        self._path, self._redact = path, options.redact or Redactor({})
        self.outage = Outage(f"sqlite:{path}", options.unreachable_timeout)
        self._positions = SqlitePositions(options.lease_seconds, options.max_attempts, self.outage)
        self._episodes = SqliteEpisodes(path, self._redact)
        self._lock = threading.Lock()
        self._name = f"process {os.getpid()}"
        self._trainer = 0
        self.database = connect(path)
        self._logged_damage: set[str] = set()  # damaged rows already logged
        if options.rolls:
            self._become_trainer(options)
        self.database.execute(f"PRAGMA busy_timeout = {int(1000 * min(BUSY_TIMEOUT, options.unreachable_timeout))}")

    def disconnect(self) -> None:
        self.outage.close()
        self.database.close()

    @_outlast_outage
    def lease(self, count: int, *, below: int | None = None) -> list[Lease]:
        """Lease the next `count` positions: free positions that were leased before, then new ones.

        Args:
            below: New positions are leased only below this number. None: no limit.
        """
        with self._open_lease_transaction() as database:
            leases: list[Lease] = []
            # More than one round: a position with a changed episode becomes a dead letter instead of a lease.
            while len(leases) < count and (orders := self._positions.find_free(database, count - len(leases), below)):
                leases += self._lease_positions(database, orders)
            return leases

    @_outlast_outage
    def bring(self) -> Lease:
        """Lease a new position for a client's own task, outside the training order."""
        with self._open_lease_transaction() as database:
            (lease,) = self._lease_positions(database, [-fetch_count(database, "brought", 1) - 1])
            return lease

    @_outlast_outage
    def lease_kept(self) -> list[Lease]:
        """Lease the free positions that have stored episodes, whose groups an earlier lease left incomplete."""
        with self._open_lease_transaction() as database:
            query = "SELECT DISTINCT place FROM positions JOIN ends USING (place)"
            rows = database.execute(f"{query} WHERE state = 'waiting' ORDER BY place").fetchall()
            return self._lease_positions(database, [int(row[0]) for row in rows])

    @_outlast_outage
    def put(self, lease: Lease, *kept: Kept) -> None:
        """Write episodes of a leased position in one transaction and renew the lease. Stored episodes are skipped.

        Raises:
            LeaseLostError: the lease is stale.
        """
        rows = self._episodes.encode_rows(lease, kept)
        with self.open_transaction() as database:
            self._positions.prolong(database, lease)
            self._episodes.put(database, rows)

    @_outlast_outage
    def close(self, lease: Lease) -> None:
        with self.open_transaction() as database:
            update_leased(database, lease, "state = 'closed', whole = 1, since = ?", time.time())

    @_outlast_outage
    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """Return the first `count` positions with a complete group, each with its episodes. None: all.

        Positions in `but`, and positions that a training step used for the last time, are left out.
        """
        with self.open_transaction() as database:
            closed_positions = database.execute(
                "SELECT place, fence FROM positions WHERE state = 'closed' ORDER BY place"
            ).fetchall()
            selected_positions = [(order, fence) for order, fence in closed_positions if order not in but][:count]
            reused_steps = self._read_reused_steps(database)
            episodes = self._load_unaltered(database, [order for order, _ in selected_positions])
            return [
                Lease(order, fence, episodes[order], reused_steps.get(order, ()))
                for order, fence in selected_positions
                if order in episodes
            ]

    @_outlast_outage
    def begun(self) -> list[int]:
        """Return the positions of the training order that were leased and never used or discarded."""
        with self.open_transaction() as database:
            query = "SELECT place FROM positions WHERE state NOT IN ('over', 'dead') AND place >= 0 ORDER BY place"
            leased = [int(row[0]) for row in database.execute(query)]
            reused_steps = self._read_reused_steps(database)
            return [order for order in leased if order not in reused_steps]

    def use(
        self, orders: Iterable[int], step: int, *, again: Collection[int] = (), advantages: Mapping[str, float] = NONE
    ) -> None:
        """Record that the update of training step `step` used these positions, as `Store.use` describes.

        This store does not save `advantages`: the run's record has them.
        """
        self._end_positions(list(orders), step, None, again)

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        self._end_positions(list(orders), step, reason)

    def give_back(self, leases: Iterable[Lease]) -> None:
        """End leases of incomplete groups, so that the positions are free again.

        Raises LeaseLostError for a stale lease.
        """
        self._give_back(list(leases))

    @_outlast_outage
    def _give_back(self, leases: Sequence[Lease]) -> None:
        """End the leases in one transaction, which is repeated while the file is unreachable."""
        with self.open_transaction() as database:
            for lease in leases:
                update_leased(database, lease, "state = 'waiting'")

    @_outlast_outage
    def commit(self) -> dict[str, Any]:
        """Commit all uses so far and return the commit's name, as `Store.commit` describes.

        The commit precedes the checkpoint. If the checkpoint is never written, no process opens the store at this
        commit.
        """
        name = uuid.uuid4().hex
        with self.open_transaction() as database:
            self._require_trainer(database)
            head = fetch_count(database, "head")
            number = database.execute("INSERT INTO commits (name, earlier) VALUES (?, ?)", (name, head)).lastrowid
            database.execute("UPDATE uses SET of = ? WHERE of IS NULL", (number,))
            database.execute("UPDATE counts SET value = ? WHERE name = 'head'", (number,))
        return {"commit": name}

    @_outlast_outage
    def forget(self, step: int) -> None:
        """Delete positions used for the last time up to `step`, with their episodes.

        `step` is the oldest checkpoint still loadable.
        """
        with self.open_transaction() as database:
            self._require_trainer(database)
            rows = [row for row in database.execute(f"{_HOLDING} AND step <= ?", (step,)).fetchall()]
            for table in ("ends", "positions", "uses"):
                database.executemany(f"DELETE FROM {table} WHERE place = ?", rows)

    def renew(self, leases: Iterable[Lease]) -> None:
        """Renew all leases that are still valid. Raises LeaseLostError with the positions of the other leases."""
        if lost := self._renew_leases(list(leases)):
            raise LeaseLostError(f"positions {lost} are leased by another process, or finished")

    @_outlast_outage
    def _renew_leases(self, leases: Sequence[Lease]) -> list[int]:
        """Renew leases and this process's heartbeat, and return the positions whose lease was lost."""
        lost = []
        with self.open_transaction() as database:
            database.execute("UPDATE members SET seen = ? WHERE name = ?", (time.time(), self._name))
            for lease in leases:
                try:
                    self._positions.prolong(database, lease)
                except LeaseLostError:
                    lost.append(lease.order)
        return lost

    @_outlast_outage
    def fail(self, lease: Lease, reason: str) -> None:
        """Record a failed attempt and end the lease: the position is free again, or dead after too many failures."""
        with self.open_transaction() as database:
            update_leased(database, lease, "state = 'waiting'")
            self._positions.record_failure(database, lease.order, self._redact(reason))

    @_outlast_outage
    def quarantine(self, order: int, reason: str) -> None:
        """Make a closed position a dead letter: its group of episodes is stored, but never trained on.

        Raises:
            TrainerFencedError: this process does not train.
            LeaseLostError: the position is not closed.
        """
        with self.open_transaction() as database:
            self._require_trainer(database)
            query = "SELECT 1 FROM positions WHERE place = ? AND state = 'closed'"
            if database.execute(query, (order,)).fetchone() is None:
                raise LeaseLostError(f"position {order} has no complete group")
            self._positions.record_failure(database, order, self._redact(reason), dead=True)

    @_outlast_outage
    def dead(self) -> list[DeadLetter]:
        """Return the positions that are leased no more after failures, with their reasons, in order."""
        with self.open_transaction() as database:
            query = (
                "SELECT place, reasons, (SELECT COUNT(*) FROM ends WHERE ends.place = positions.place) "
                "FROM positions WHERE state = 'dead' ORDER BY place"
            )
            return [
                DeadLetter(order, tuple(read_reasons(reasons)), ends)
                for order, reasons, ends in database.execute(query)
            ]

    @_outlast_outage
    def revive(self, order: int) -> None:
        """Free a dead letter's position and clear its reasons, so that it is leased again.

        Raises:
            LeaseLostError: the position is no dead letter.
        """
        with self.open_transaction() as database:
            update = "UPDATE positions SET state = 'waiting', reasons = '[]' WHERE place = ? AND state = 'dead'"
            if not database.execute(update, (order,)).rowcount:
                raise LeaseLostError(f"position {order} has not been given up, so it cannot be revived")
            try:
                self._episodes.load_episodes(database, order)
            except AlteredEpisodeError:  # with changed episodes the position would be dead again at its next lease
                self._remove_episodes(database, order)

    @_outlast_outage
    def announce(self, policy: Policy) -> None:
        """Store the policy for samplers in place of the earlier one.

        Raises TrainerFencedError unless this process trains.
        """
        with self.open_transaction() as database:
            self._require_trainer(database)
            row = (dumps(asdict(policy)), self._trainer, time.time())
            database.execute("INSERT OR REPLACE INTO policy VALUES (1, ?, ?, ?)", row)

    @_outlast_outage
    def announced(self) -> AnnouncedPolicy | None:
        """Return the latest announced policy, or None without one."""
        with self.open_transaction() as database:
            row = database.execute("SELECT said, trainer, time FROM policy").fetchone()
            return read_announced(row, time.time()) if row else None

    @_outlast_outage
    def join(self, role: Role, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Register this process under a unique name, or renew its heartbeat. Later leases carry the name."""
        self._name = name
        now = time.time()
        with self.open_transaction() as database:
            database.execute(
                "INSERT INTO members VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
                "SET role = excluded.role, seen = excluded.seen, told = excluded.told",
                (name, role, now, now, self._redact.row(details or {})),
            )

    @_outlast_outage
    def leave(self) -> None:
        with self.open_transaction() as database:
            database.execute("DELETE FROM members WHERE name = ?", (self._name,))

    @_outlast_outage
    def members(self) -> list[StoreMember]:
        """Return all registered processes, trainers first, then by name. Rows that ajet did not write are skipped."""
        now = time.time()
        with self.open_transaction() as database:
            query = (
                "SELECT role, name, seen, joined, told, "
                "(SELECT COUNT(*) FROM positions WHERE state = 'leased' AND holder = name) "
                "FROM members ORDER BY role != 'trainer', name"
            )
            member_rows = [(row, read_member(row, now)) for row in database.execute(query)]
        for row, member in member_rows:
            if member is None:
                self._warn_of_row("members", row[1])
        return [member for _, member in member_rows if member is not None]

    @_outlast_outage
    def depths(self) -> StoreDepths:
        """Return the number of positions in each state, after ending expired leases."""
        with self.open_transaction() as database:
            self._positions.expire(database)
            counts = dict(database.execute("SELECT state, COUNT(*) FROM positions GROUP BY state").fetchall())
            for state in counts.keys() - STATES:
                self._warn_of_row("positions", state)
            depths = {state: counts.get(state, 0) for state in STATES}
            # Closed positions that a step has used already are counted as `again`.
            if reused := self._read_reused_steps(database):
                depths |= {"closed": depths["closed"] - len(reused), "again": len(reused)}
            return StoreDepths(
                **depths,
                next=fetch_count(database, "next"),
                oldest_lease=self._positions.oldest_age(database, "leased"),
                oldest_closed=self._positions.oldest_age(database, "closed", but=reused),
            )

    def _warn_of_row(self, table: str, name: object) -> None:
        """Log once that a row is invalid and skipped.

        Args:
            table: Name of the table.
            name: Value that identifies the row.
        """
        row_name = f"{table}: {str(name)[:LONGEST_VALUE]}"
        if row_name not in self._logged_damage:
            self._logged_damage.add(row_name)
            logger.warning("ajet skips a row of the store {}, because ajet did not write it ({})", self._path, row_name)

    @contextmanager
    def open_transaction(self) -> Iterator[sqlite3.Connection]:
        """Within the block, hold the lock and run one transaction. An exception rolls the transaction back."""
        with self._lock, self._explain_errors():
            bound_statements(self.database)
            self.database.execute("BEGIN IMMEDIATE")
            try:
                yield self.database
                self.database.execute("COMMIT")
            except BaseException:
                if self.database.in_transaction:  # a commit that failed may have ended it, or not
                    self.database.execute("ROLLBACK")
                raise

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Within the block, turn SQLite errors into errors with advice for the user.

        Explained are a full disk, a locked, damaged or closed file, and a file of a later version. Other SQLite errors
        are mistakes in ajet and pass through.
        """
        try:
            yield
        except DamagedRowError as damaged:
            raise damaged_file(self._path, damaged) from damaged
        except sqlite3.Error as error:
            version = None
            with suppress(sqlite3.Error):  # the file may be damaged or closed
                version = read_version(self.database)
            if version is not None and version > VERSION:
                raise other_version_error(str(self._path), version, VERSION) from error
            # If the file has other tables or none, a failing statement is no mistake in ajet.
            if version == VERSION and is_mistake(error):
                raise
            raise explain_error(self._path, error) from error

    @contextmanager
    def _open_lease_transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that leases positions, after ending expired leases.

        A trainer's leases do not expire: they end when another trainer opens the store.
        """
        with self.open_transaction() as database:
            if self._trainer:
                self._require_trainer(database)
            self._positions.expire(database)
            yield database

    def _become_trainer(self, options: StoreOptions) -> None:
        """Make this process the trainer, and undo all uses that the checkpoint `options.at` does not know.

        Raises:
            UserError: the store belongs to another run, or does not know the checkpoint.
        """
        with self.open_transaction() as database:
            commit_number = 0  # no checkpoint: all uses are undone
            database.execute("INSERT OR IGNORE INTO facts VALUES ('run', ?)", (options.run,))
            (owner,) = database.execute("SELECT value FROM facts WHERE name = 'run'").fetchone()
            if owner != options.run:
                raise other_run_error(str(self._path))
            if options.settings:
                database.execute("INSERT OR REPLACE INTO facts VALUES ('settings', ?)", (options.settings,))
            if options.at is not None:
                row = database.execute(
                    "SELECT number FROM commits WHERE name = ?", (options.at.get("commit"),)
                ).fetchone()
                if row is None:
                    raise other_store_error(str(self._path))
                commit_number = int(row[0])
            # A higher number than every earlier trainer's: these are refused from now on.
            self._trainer = fetch_count(database, "trainer", 1) + 1
            database.execute("UPDATE counts SET value = ? WHERE name = 'head'", (commit_number,))
            # Uses without a commit: the earlier trainer ended before it wrote them into a checkpoint.
            database.execute("DELETE FROM uses WHERE of IS NULL")
            database.execute(
                # Positions used only by later commits than the checkpoint's are free again, or closed if their group is
                # complete.
                "UPDATE positions SET state = CASE WHEN whole THEN 'closed' ELSE 'waiting' END "
                f"WHERE state = 'over' AND place NOT IN ({_HOLDING})"
            )
            database.execute(f"UPDATE positions SET state = 'over' WHERE place IN ({_HOLDING})")
            # Leases of an earlier trainer end; samplers keep theirs.
            database.execute("UPDATE positions SET state = 'waiting' WHERE state = 'leased' AND trainer > 0")
            if options.usable is not None:
                self._drop_unusable(database, options.usable)

    def _drop_unusable(self, database: sqlite3.Connection, usable: Usable) -> None:
        """Remove stored episodes for which `usable` returns False, if no step has used their position."""
        query = "SELECT DISTINCT place FROM ends JOIN positions USING (place) WHERE state IN ('waiting', 'closed')"
        reused_steps = self._read_reused_steps(database)
        for order, episodes in self._load_unaltered(
            database, [order for (order,) in database.execute(query).fetchall()]
        ).items():
            if order not in reused_steps and not usable(episodes):
                self._remove_episodes(database, order)

    @staticmethod
    def _remove_episodes(database: sqlite3.Connection, order: int) -> None:
        """Remove the episodes of a position and free the position, so that it is played again."""
        database.execute("DELETE FROM ends WHERE place = ?", (order,))
        database.execute("UPDATE positions SET state = 'waiting', whole = 0 WHERE place = ?", (order,))

    def _lease_positions(self, database: sqlite3.Connection, orders: Iterable[int]) -> list[Lease]:
        """Lease these positions for this process, except positions with changed episodes."""
        return [
            Lease(order, self._positions.take(database, order, self._name, self._trainer), episodes)
            for order, episodes in self._load_unaltered(database, orders).items()
        ]

    def _load_unaltered(self, database: sqlite3.Connection, orders: Iterable[int]) -> dict[int, tuple[Kept, ...]]:
        """Return the stored episodes by position.

        A position with a changed episode becomes a dead letter and is left out.
        """
        episodes = {}
        for order in orders:
            try:
                episodes[order] = self._episodes.load_episodes(database, order)
            except AlteredEpisodeError as altered:
                reason = self._redact(str(altered))
                logger.warning("position {} is given up, because an episode was {}", order, reason)
                self._positions.record_failure(database, order, reason, dead=True)
        return episodes

    def _require_trainer(self, database: sqlite3.Connection) -> None:
        """Raise TrainerFencedError unless this process is the store's latest trainer."""
        latest = fetch_count(database, "trainer")
        if self._trainer != latest or not latest:
            raise fenced_trainer_error(str(self._path), self._trainer, latest)

    @_outlast_outage
    def _end_positions(
        self, orders: Iterable[int], step: int, reason: UntrainedReason | None, reused: Collection[int] = ()
    ) -> None:
        """Record the use or the discard of positions by a step.

        Args:
            orders: Numbers of the positions.
            reason: why the positions are discarded. None for a use.
            reused: positions that stay closed for a later step.

        Raises:
            LeaseLostError: a position is not leased or closed any more, or this step or a later one has used it. No use
                is recorded.
        """
        with self.open_transaction() as database:
            self._require_trainer(database)
            reused_steps = self._read_reused_steps(database)
            for order in set(orders):
                end_update = "UPDATE positions SET state = 'over' WHERE place = ? AND state IN ('leased', 'closed')"
                reuse_update = (
                    "UPDATE positions SET state = 'closed' WHERE place = ? AND state = 'closed' "
                    "AND place IN (SELECT place FROM ends)"
                )
                if not database.execute(reuse_update if order in reused else end_update, (order,)).rowcount:
                    state = "closed" if order in reused else "leased"
                    raise LeaseLostError(
                        f"step {step} cannot train on the group at position {order}: its state is not {state} any more"
                    )
                if reused_steps.get(order, (-1,))[-1] >= step:
                    raise LeaseLostError(
                        f"step {step} cannot train on the group at position {order}: step {reused_steps[order][-1]} "
                        "has used it already"
                    )
                row = (order, step, reason, order in reused)
                database.execute("INSERT INTO uses (place, step, reason, again) VALUES (?, ?, ?, ?)", row)

    @staticmethod
    def _read_reused_steps(database: sqlite3.Connection) -> dict[int, tuple[int, ...]]:
        """Return the steps that used each closed position that later steps may use again, by position."""
        if database.execute("SELECT 1 FROM uses WHERE again LIMIT 1").fetchone() is None:
            return {}
        steps: dict[int, tuple[int, ...]] = {}
        for order, step in database.execute(_REUSED):
            if not isinstance(step, int):
                raise DamagedRowError(f"position {order} is recorded as used by the invalid step {step!r:.60}")
            steps[order] = (*steps.get(order, ()), step)
        return steps
