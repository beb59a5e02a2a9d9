"""Tables of SqliteStore and the meaning of SQLite errors.

A position is a task's place in the training order (column `place`). Invariant: `PRAGMA user_version` is the version of
a file, and only files of this version are opened. One transaction creates the tables of a new file. Error texts follow
SQLite's error code, so a damaged file is never reported as a full disk.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from ajet.schema.errors import UserError
from ajet.store.contract import StoreUnavailableError, StoreUnreachableError
from ajet.store.shared import other_version_error

VERSION = 5
PATIENCE = 60.0
"""Seconds a transaction waits for another process."""
STEPS, MOST_STEPS = 1_000_000, 2_000_000_000
"""Instructions of SQLite's machine between two checks, and of one transaction: about half a minute of computing."""
TABLES = frozenset({"positions", "uses", "ends", "commits", "counts", "members", "policy", "facts"})
PAUSE = 0.01
"""Seconds between two tries where SQLite itself does not wait."""
_SCHEMA = """
CREATE TABLE positions (
    place INTEGER PRIMARY KEY, state TEXT NOT NULL, whole INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL,
    until REAL NOT NULL, holder TEXT NOT NULL, trainer INTEGER NOT NULL, seconds REAL NOT NULL,
    reasons TEXT NOT NULL DEFAULT '[]', since REAL NOT NULL);
CREATE INDEX positions_by_state ON positions (state, place);
CREATE TABLE uses (
    place INTEGER NOT NULL, step INTEGER NOT NULL, reason TEXT, of INTEGER, again INTEGER NOT NULL DEFAULT 0);
CREATE INDEX uses_of_place ON uses (place);
CREATE TABLE ends (
    uuid TEXT PRIMARY KEY, place INTEGER NOT NULL, alone INTEGER NOT NULL, ended_by TEXT NOT NULL,
    line TEXT NOT NULL, arrays BLOB NOT NULL, seal TEXT NOT NULL);
CREATE INDEX ends_of_place ON ends (place);
CREATE TABLE commits (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE NOT NULL, earlier INTEGER NOT NULL);
CREATE TABLE counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO counts VALUES ('next', 0), ('brought', 0), ('fence', 0), ('head', 0), ('trainer', 0);
CREATE TABLE members (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, joined REAL NOT NULL, seen REAL NOT NULL, told TEXT NOT NULL);
CREATE TABLE policy (one INTEGER PRIMARY KEY CHECK (one = 1), said TEXT NOT NULL, trainer INTEGER, time REAL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
"""Columns of `positions`: `state` is waiting, leased, closed, over or dead; `whole`: 1 if ever closed; `trainer`:
number of the holding trainer, 0 for other processes; `seconds`: lease time; `reasons`: JSON list of failed attempts;
`since`: time of the last lease or close.

Columns of `uses`: `of` is the commit of a use, null for the next one; `again`: 1 if the position stays closed for
another use. `ends.seal` is the digest of the episode.
"""


_MADE = "SELECT type, name FROM sqlite_master UNION ALL SELECT 'version', user_version FROM pragma_user_version"
"""One statement for a consistent view; another process may be creating the tables."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a file of this version. Create a missing one.

    Raises:
        UserError: another version, another program's database, no database, or the file cannot be created.
    """
    try:
        database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            require_own(database, path)
            _write_ahead(database)
            database.execute("PRAGMA synchronous=FULL")
            _create_tables(database, path)
        except BaseException:
            database.close()
            raise
    except sqlite3.DatabaseError as error:
        raise _cannot_open_error(path, error) from error
    return database


def check_file(path: Path, *, made: Path | None = None) -> None:
    """Raise the errors of `connect` as far as visible without creating or changing anything.

    Args:
        made: A folder that does not count as missing, because it is created before the store is opened.
    """
    try:
        if path.exists():
            # Without a write-ahead log no process has the file open, and all data is in the file itself.
            is_closed_file = not path.with_name(f"{path.name}-wal").exists()
            uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' * is_closed_file}"
            with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE)) as base:
                require_own(base, path)
            if not os.access(path, os.W_OK):
                raise sqlite3.OperationalError  # `_why_not` finds the cause
        elif path.parent != made and not (path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)):
            raise sqlite3.OperationalError("this user may not write to its folder")
    except sqlite3.DatabaseError as error:
        raise _cannot_open_error(path, error) from error


def _cannot_open_error(path: Path, error: sqlite3.DatabaseError) -> UserError:
    """Return the error for a file that cannot be opened, with the cause as far as it is visible."""
    return UserError(
        f"The store {path} cannot be opened: {_why_not(path, error)}.",
        expected="a file created by ajet, or no file, in a folder that this user may write to",
    )


def require_own(base: sqlite3.Connection, path: Path) -> None:
    """Raise UserError for the database of another program, and for a store of another version than `VERSION`.

    An empty file passes.
    """
    bound_statements(base)
    entries = base.execute(_MADE).fetchall()
    (version,) = (int(value) for kind, value in entries if kind == "version")
    tables = {name for kind, name in entries if kind == "table"}
    if tables and "positions" not in tables:
        raise UserError(
            f"The store {path} cannot be opened: the file is the database of another program (its tables: "
            f"{', '.join(sorted(tables)[:5])}).",
            expected="a file created by ajet, or no file, in a folder that this user may write to",
        )
    if version != VERSION and (version or tables):
        raise other_version_error(str(path), version, VERSION)
    added = [f"the {kind} {name!r:.60}" for kind, name in entries if kind not in ("table", "index", "version")]
    if added:  # a view can replace a table and run any code; a trigger can change stored rows
        raise UserError(
            f"The store {path} cannot be opened: another program has added {added[0]} to the file.",
            expected="a file that contains only the tables of ajet",
        )
    if version == VERSION and (missing := TABLES - tables):
        raise UserError(
            f"The store {path} cannot be opened: its table {min(missing)} is missing.",
            expected="a file created by ajet, with all its tables",
        )


def bound_statements(base: sqlite3.Connection) -> None:
    """Bound the run time of later statements. SQLite ends a longer one with SQLITE_INTERRUPT."""
    # SQLite calls the handler every STEPS instructions; True ends the statement.
    steps = iter(range(MOST_STEPS // STEPS))
    base.set_progress_handler(lambda: next(steps, None) is None, STEPS)


def _why_not(path: Path, error: sqlite3.DatabaseError) -> str:
    """Return why the file could not be opened.

    SQLite's own text does not tell a missing folder, a folder instead of a file and a missing permission apart.
    """
    if path.is_dir():
        return "the path is a folder"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "this user may not read and write the file"
    return str(error)


def is_mistake(error: sqlite3.Error) -> bool:
    """Return True for an error caused by a mistake in ajet: a wrong statement, value or order of calls.

    False for a damaged, full or locked file.
    """
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return type(error) is not sqlite3.DatabaseError


def _write_ahead(base: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. SQLite reports a lock instead of waiting if two processes switch at once."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            base.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE)


def _create_tables(base: sqlite3.Connection, path: Path) -> None:
    """Create the tables in an empty file, in one transaction, unless another process has created them."""
    if read_version(base) == VERSION:
        return
    base.execute("BEGIN IMMEDIATE")  # if a later statement fails, `connect` closes the file and ends it
    version = read_version(base)  # another process may have created the tables meanwhile
    require_own(base, path)
    if version != VERSION:
        for statement in _SCHEMA.split(";"):
            base.execute(statement)
        base.execute(f"PRAGMA user_version = {VERSION}")
    base.execute("COMMIT")


def read_version(base: sqlite3.Connection) -> int:
    """Return the version of the file's tables, or 0 for an empty file."""
    (version,) = base.execute("PRAGMA user_version").fetchone()
    return int(version)


OUT_OF_REACH = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
)
"""Codes of an unreachable network folder, a failing disk, or a file locked by another process."""
_DAMAGED = (
    "an undamaged file",
    (
        "Restore a copy of the file together with its -wal file, or set another store. Episodes stored since the "
        "run's last checkpoint may be lost; ajet then runs their tasks again."
    ),
)
_NO_RIGHT = (
    "a file in a folder that this user may write to",
    "Give this user write permission, then start the same command again.",
)
_ADVICE = {
    sqlite3.SQLITE_FULL: (
        "free space on its disk",
        "Free disk space, then start the same command again: no stored episode is lost.",
    ),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _NO_RIGHT,
    sqlite3.SQLITE_PERM: _NO_RIGHT,
    sqlite3.SQLITE_AUTH: _NO_RIGHT,
    sqlite3.SQLITE_INTERRUPT: (
        "statements that finish; another program may have changed the file's tables",
        "Restore a copy of the file, or set another store.",
    ),
}
"""Expected state and advice by primary code."""


def explain_error(path: Path, error: sqlite3.Error) -> StoreUnavailableError:
    """Return the error to show for a SQLite error that is not a mistake in ajet."""
    code = error_code(error)
    message = f"The store {path} failed: {error}."
    if code in OUT_OF_REACH:
        return StoreUnreachableError(
            message,
            where=str(path),
            expected="a disk or network folder that can be reached, and no other program that locks the file",
            do="Mount the folder again, or stop the other program; then start the same command again: no stored "
            "episode is lost.",
        )
    expected, do = _ADVICE.get(code, ("an open, undamaged file created by ajet", "Start the same command again."))
    return StoreUnavailableError(message, where=str(path), expected=expected, do=do)


def damaged_file(path: Path, what: object) -> StoreUnavailableError:
    """Return the error to show for a file with values that ajet never writes."""
    expected, do = _DAMAGED
    return StoreUnavailableError(f"The store {path} is damaged: {what}.", where=str(path), expected=expected, do=do)


def error_code(error: sqlite3.Error) -> int:
    """Return the primary error code of SQLite (the low byte of the extended code), or 0 for an error without code."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0
