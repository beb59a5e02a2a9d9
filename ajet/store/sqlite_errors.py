"""What SQLite's errors mean for a store's file, and which of them may pass.

Invariant: the screen follows SQLite's error code, so that a damaged file is never called a full disk.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ajet.store.contract import StoreAway, StoreUnreachable

OUT_OF_REACH = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PROTOCOL,
)
"""Codes of a network folder that is away, a failing disk, or a file that another process keeps locked."""
_DAMAGED = (
    "a file that is whole",
    "Put back a copy of the file together with its -wal file, or name another store: what was put there since the "
    "run's last checkpoint may be lost, and is played again.",
)
_NO_RIGHT = ("a file in a folder that this user may write", "Give this user the right, then start the same command.")
_ADVICE = {
    sqlite3.SQLITE_FULL: ("room on its disk", "Make room, then start the same command: nothing that was put is lost."),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _NO_RIGHT,
    sqlite3.SQLITE_PERM: _NO_RIGHT,
    sqlite3.SQLITE_AUTH: _NO_RIGHT,
    sqlite3.SQLITE_INTERRUPT: (
        "statements that end: another program may have changed the file's tables",
        "Put back a copy of the file, or name another store.",
    ),
}
"""By primary code: what was expected, and what to do."""


def explain_error(path: Path, error: sqlite3.Error) -> StoreAway:
    """The screen for an error that is no mistake of ajet's."""
    code = error_code(error)
    what = f"The store {path} cannot be worked on: {error}."
    if code in OUT_OF_REACH:
        return StoreUnreachable(
            what,
            where=str(path),
            expected="a disk or network folder that answers, and no program that keeps the file locked",
            do="Mount the folder again, or end that program; then start the same command: nothing is lost.",
        )
    expected, do = _ADVICE.get(code, ("a file that ajet made, open and whole", "Start the same command again."))
    return StoreAway(what, where=str(path), expected=expected, do=do)


def damaged_file(path: Path, what: object) -> StoreAway:
    """The screen for a file with values that ajet never wrote."""
    expected, do = _DAMAGED
    return StoreAway(f"The store {path} is damaged: {what}.", where=str(path), expected=expected, do=do)


def error_code(error: sqlite3.Error) -> int:
    """SQLite's primary code; 0 where it told none."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0
