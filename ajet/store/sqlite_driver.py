"""Driver of SQLite stores: `sqlite:PATH` and plain paths.

A position is a task's place in the training order. Invariant of readers: the file is opened read-only, and a position
is read with its episodes in one transaction (see `ajet.store.reader`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ajet.record.secrets import SHAPES_ONLY
from ajet.schema.errors import Finding, UserError
from ajet.store import sqlite_tables
from ajet.store.findings import (
    report_contents,
    report_dead_letters,
    report_member,
    report_policy,
    report_schema_version,
)
from ajet.store.opening import Address, StoreLeftovers, missing_store_error
from ajet.store.reader import StoredPosition, build_stored_position
from ajet.store.shared import Policy, StoreOptions
from ajet.store.sqlite_rows import (
    DamagedRowError,
    SqliteEpisodes,
    read_announced,
    read_count,
    read_member,
    read_position,
    read_reasons,
)
from ajet.store.sqlite_store import LINE, SqliteStore
from ajet.store.sqlite_tables import bound_statements, check_file, damaged_file, is_mistake, read_version, require_own


class SqliteDriver:
    """Opens and reads stores in SQLite files."""

    form = "sqlite:PATH"
    default = "sqlite:store.sqlite"

    def open(self, address: Address, opener: StoreOptions) -> SqliteStore:
        """Open the store for a process of a run. A missing file is created."""
        return SqliteStore(_file_path(address), opener)

    def check(self, address: Address, *, made: Path | None = None) -> None:
        """Raise the errors of `open` without creating or changing anything.

        Args:
            made: A folder that does not count as missing, because the start of the run will create it.
        """
        check_file(_file_path(address), made=made)

    def read(self, address: Address) -> SqliteReader:
        """Open the store in a SQLite file read-only."""
        return SqliteReader(_file_path(address))

    def survey(self, address: Address) -> list[Finding]:
        return survey_file(_file_path(address))

    def find_leftovers(self, address: Address, *, remove: bool = False) -> StoreLeftovers:
        """Return no leftovers: a put is one transaction, or is repaired by the next run."""
        return StoreLeftovers()


def _file_path(address: Address) -> Path:
    assert address.path is not None, "an address with the scheme sqlite has a path"
    return address.path


@dataclass(slots=True)
class _PositionUses:
    """The training steps that used a position. Uses undone by a resumed run are left out."""

    steps: list[int] = field(default_factory=list)
    """Training steps that used the position."""
    left: str = ""
    """Why the position was discarded; "" for other positions."""


class SqliteReader:
    """Reads a store in a SQLite file without changing the file."""

    def __init__(self, path: Path) -> None:
        """Open the file read-only. Raises UserError without an ajet store of this version."""
        if not path.is_file():
            raise missing_store_error(f"sqlite:{path}")
        self._path = path
        self._episodes = SqliteEpisodes(path, SHAPES_ONLY)
        with _explain_errors(path):
            self.database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            with self.bound_reads():
                self._load_facts()
        except BaseException:
            self.database.close()
            raise

    def close(self) -> None:
        self.database.close()

    def announced(self) -> Policy | None:
        """Return the latest announced policy, or None without one."""
        with self.bound_reads():
            row = self.database.execute("SELECT said FROM policy").fetchone()
            # Trainer number and time are not part of the policy.
            return read_announced((row[0], 0, 0.0), 0.0).policy if row else None

    def begun(self) -> int:
        """Return the number of positions of the training order that were leased at least once."""
        with self.bound_reads():
            return read_count("next", self.database.execute("SELECT value FROM counts WHERE name = 'next'").fetchone())

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """Return the numbers of positions with episodes, in order.

        Args:
            beginning: Only positions with an episode whose uuid begins so.
            steps: Only positions used by these training steps. Empty: all.
        """
        query = "SELECT DISTINCT place FROM ends WHERE substr(uuid, 1, ?) = ? ORDER BY place"
        with self.bound_reads():
            positions = [read_position(row) for row in self.database.execute(query, (len(beginning), beginning))]
        return [order for order in positions if not steps or {*self._uses_of(order).steps} & {*steps}]

    def position(self, order: int) -> StoredPosition | None:
        """Return a position with its episodes, or None if there is no such position or the position has no episodes."""
        with self.bound_reads():
            self.database.execute("BEGIN")  # state and episodes of one moment, while other processes write
            try:
                row = self.database.execute("SELECT state FROM positions WHERE place = ?", (order,)).fetchone()
                ends = list(self._episodes.iterate_episodes(self.database, order))
            finally:
                self.database.execute("ROLLBACK")
        if row is None or not ends:
            return None
        return build_stored_position(order, row[0], ends, self._uses_of(order).steps, self._uses_of(order).left)

    def _load_facts(self) -> None:
        """Check the file's version, and read the run's identity, its settings and the valid uses."""
        version = read_version(self.database)
        if not version:
            raise missing_store_error(f"sqlite:{self._path}")
        require_own(self.database, self._path)
        facts = dict(self.database.execute("SELECT name, value FROM facts").fetchall())
        self.run, self.settings = facts.get("run", ""), facts.get("settings", "")
        # Valid are the uses of the current line of checkpoints, and those since the last checkpoint (`of` is null).
        query = f"{LINE} SELECT place, step, reason FROM uses WHERE of IS NULL OR of IN line ORDER BY step"
        self._uses_by_order: dict[int, _PositionUses] = {}
        for order, step, reason in self.database.execute(query):
            position_uses = self._uses_by_order.setdefault(order, _PositionUses())
            if reason is None:
                position_uses.steps.append(step)
            else:
                position_uses.left = reason

    def _uses_of(self, order: int) -> _PositionUses:
        return self._uses_by_order.get(order, _PositionUses())

    @contextmanager
    def bound_reads(self) -> Iterator[None]:
        """Within the block, bound the run time of SQL statements and turn SQLite errors into UserErrors."""
        bound_statements(self.database)
        with _explain_errors(self._path):
            yield


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite errors within the block into UserErrors."""
    try:
        yield
    except DamagedRowError as damaged:
        raise damaged_file(path, damaged) from damaged
    except sqlite3.Error as error:
        if is_mistake(error):  # in ajet, so it is shown with its traceback
            raise
        raise UserError(
            f"The store cannot be read: {error}.",
            where=f"sqlite:{path}",
            expected="a complete file created by ajet, in a folder that this user may read",
        ) from error


def survey_file(path: Path) -> list[Finding]:
    """Return the findings about a store's file, for `ajet doctor --store`, without changing the file."""
    if not path.exists():
        return [Finding("file", "note", f"there is no file {path}", "the first process that opens it creates it")]
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return _survey_tables(database, path)
    except UserError as error:
        return [Finding("file", "problem", error.what, error.expected)]
    except (sqlite3.DatabaseError, DamagedRowError) as error:
        return [Finding("file", "problem", f"{path}: {error}", "the file is not an ajet store, or it is damaged")]


def _survey_tables(base: sqlite3.Connection, path: Path) -> list[Finding]:
    """Return the findings about schema, contents, failed positions, policy and members of a store."""
    started = time.perf_counter()
    (version,) = base.execute("PRAGMA user_version").fetchone()
    milliseconds = 1000 * (time.perf_counter() - started)
    findings = [Finding("file", "ok", f"{path}, SQLite {sqlite3.sqlite_version}, read in {milliseconds:.1f} ms")]
    if not version:
        sqlite_tables.require_own(base, path)
        return [*findings, Finding("schema", "note", "no tables yet", "the first process that opens it creates them")]
    findings.append(report_schema_version(version, sqlite_tables.VERSION))
    if version != sqlite_tables.VERSION:
        return findings
    sqlite_tables.require_own(base, path)
    states = dict(base.execute("SELECT state, COUNT(*) FROM positions GROUP BY state").fetchall())
    (ends,) = base.execute("SELECT COUNT(*) FROM ends").fetchone()
    findings.append(report_contents(states, ends, path.stat().st_size))
    dead = base.execute("SELECT place, reasons FROM positions WHERE state = 'dead' ORDER BY place").fetchall()
    findings += report_dead_letters((order, (read_reasons(reasons) or [""])[-1]) for order, reasons in dead)
    for row in base.execute("SELECT said, trainer, time FROM policy"):
        latest = read_announced(row, time.time())
        findings.append(report_policy(asdict(latest.policy), latest.age))
    leased = "SELECT holder, COUNT(*) FROM positions WHERE state = 'leased' GROUP BY holder"
    lease_count_by_holder = dict(base.execute(leased).fetchall())
    for row in base.execute("SELECT role, name, seen, joined, told, 0 FROM members ORDER BY role DESC, name"):
        if (member := read_member(row, time.time())) is not None:
            findings.append(
                report_member(member.role, member.name, member.age, lease_count_by_holder.get(member.name, 0))
            )
        else:
            findings.append(
                Finding(
                    "members",
                    "warning",
                    f"ajet did not write a row of the table ({row[1]!r:.60})",
                    "ajet skips the row",
                )
            )
    return findings
