"""JudgeStore: a SQLite file of judge replies and spent budgets, shared by all runs in a folder.

Invariant: a stored reply is used only if its digest, over question and reply and written in the same transaction, is
right. Other rows are ignored. A call is counted before its request. A damaged file is renamed, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.schema.errors import UserError

NAME = "judges.sqlite"
WAIT_S = 20.0
"""Wait for another writing process."""
_FORM = """
create table if not exists verdicts (key text primary key, reply text not null, digest text not null) without rowid;
create table if not exists spent (run text primary key, calls integer not null, cost real not null) without rowid;
"""


class JudgeStore:
    """Stores replies and spent budgets in one file. Thread-safe; reopens after `close`."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises UserError if it cannot be written."""
        self._path, self._lock = path, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database: sqlite3.Connection | None = self._open_database()
        except (sqlite3.Error, OSError) as error:
            raise UserError(
                f"Verdicts of judges cannot be stored: {error}.",
                where=str(path),
                do="make its folder writable, or set task_judge.model_judge.cache: false",
            ) from error

    @staticmethod
    def key(question: Mapping[str, Any]) -> str:
        """Return a digest of everything that determines a reply: model, prompt and sampling."""
        text = json.dumps(question, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> str | None:
        """Return the stored reply of a question's key; None if there is none, or if its digest is wrong."""
        try:
            with self._lock:
                row = (
                    self._get_connection()
                    .execute("select reply, digest from verdicts where key = ?", (key,))
                    .fetchone()
                )
        except sqlite3.Error as error:
            logger.warning("judge: stored verdicts in {} cannot be read: {}", self._path, error)
            return None
        if row is None or not isinstance(row[0], str) or row[1] != _digest_reply(key, row[0]):
            return None
        return row[0]

    def put(self, key: str, reply: str) -> None:
        """Store a reply. A failure is only logged: the reply is then requested again later."""
        try:
            with self._lock, self._get_connection() as connection:
                connection.execute(
                    "insert or replace into verdicts values (?, ?, ?)", (key, reply, _digest_reply(key, reply))
                )
        except (sqlite3.Error, UnicodeError) as error:
            logger.warning("judge: a verdict cannot be stored in {}: {}", self._path, error)

    def spend(self, run: str, calls: int, cost: float) -> tuple[int, float]:
        """Add calls and cost to the budget of `run`, and return its total. Raises sqlite3.Error."""
        with self._lock, self._get_connection() as connection:
            connection.execute("begin immediate")
            connection.execute(
                "insert into spent values (?, ?, ?) on conflict (run) do update set calls = calls + excluded.calls, "
                "cost = cost + excluded.cost",
                (run, calls, cost),
            )
            row = connection.execute("select calls, cost from spent where run = ?", (run,)).fetchone()
        return int(row[0]), float(row[1])

    def close(self) -> None:
        """Close the file until its next use. Idempotent."""
        with self._lock:
            if self._database is not None:
                self._database.close()
            self._database = None

    def _get_connection(self) -> sqlite3.Connection:
        """Return the open database. Raises sqlite3.Error."""
        if self._database is None:
            self._database = self._open_database()
        return self._database

    def _open_database(self) -> sqlite3.Connection:
        """Open the file. A damaged file is renamed, with a warning, and a new one is created. Raises sqlite3.Error."""
        try:
            return self._open_connection()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked or not writable, so not damaged
                raise
            damaged = self._path.with_name(f"{NAME}.damaged-{time.time_ns()}")
            self._path.rename(damaged)
            logger.warning("judge: {} is damaged and was renamed to {}; verdicts are requested again",
                           self._path, damaged.name)  # fmt: skip
            return self._open_connection()

    def _open_connection(self) -> sqlite3.Connection:
        """Connect to the file and create its tables if they are missing. Raises sqlite3.Error."""
        connection = sqlite3.connect(self._path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.executescript(_FORM)
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _digest_reply(key: str, reply: str) -> str:
    """Return the digest of a key with its reply, by which a damaged row is recognized."""
    return hashlib.sha256(f"{key}\n{reply}".encode("utf-8", "surrogatepass")).hexdigest()
