"""One SQLite database in the working folder.

Invariants: no statement reaches another file (the database itself refuses ATTACH, VACUUM INTO and extensions), exceeds
the time limit, or answers too many rows. The file is checked to be a regular file of the working folder; SQLite then
opens the file and its journal by path. A model's program could place a link between check and open. The link leads only
to files visible in the sandbox, or, for an unconfined server, to files already accessible to the program.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

from pydantic import Field

from .settings import Settings
from .tool import ToolError
from .tool_server import ToolServer

FILE = "database.sqlite"
MAX_ROWS = 1000
MAX_VALUE = 10_000_000
"""Maximum bytes of one value."""
STEPS = 10_000
"""Steps of SQLite's virtual machine between two checks of the clock."""
READS = ("SELECT", "WITH", "VALUES", "EXPLAIN")
Query = Annotated[str, Field(description="one SQL statement")]
REFUSED = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
PRAGMAS = frozenset({"table_info", "table_xinfo", "index_list", "index_info", "foreign_key_list"})


class Database(ToolServer):
    """Runs queries, lists tables and stores insights."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.insights: list[str] = []

    def read_query(self, query: Query) -> list[dict[str, Any]]:
        """Run a SELECT on the database."""
        if not query.lstrip().upper().startswith(READS):
            raise ToolError("read_query takes a SELECT; write_query changes data")
        return self._run_query(query, write=False)

    def write_query(self, query: Query) -> str:
        """Run an INSERT, UPDATE or DELETE."""
        if query.lstrip().upper().startswith(("SELECT", "EXPLAIN")):
            raise ToolError("read_query takes a SELECT")
        with self._open_database(write=True) as database:
            return f"{database.execute(query).rowcount} rows"

    def create_table(self, query: Query) -> str:
        """Make a table, by CREATE TABLE."""
        if not query.lstrip().upper().startswith("CREATE"):
            raise ToolError("create_table takes CREATE TABLE")
        self._run_query(query, write=True)
        return "the table is there"

    def list_tables(self) -> list[str]:
        """Names of the database's tables."""
        rows = self._run_query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name", write=False)
        return [row["name"] for row in rows]

    def describe_table(self, table_name: str) -> list[dict[str, Any]]:
        """Columns of a table, with types."""
        quoted = table_name.replace('"', '""')
        return self._run_query(f'PRAGMA table_info("{quoted}")', write=False)

    def append_insight(self, insight: str) -> str:
        """Store a sentence about the data, and return all stored sentences."""
        self.insights.append(insight)
        return "\n".join(f"- {stored_insight}" for stored_insight in self.insights)

    def _run_query(self, query: str, *, write: bool) -> list[dict[str, Any]]:
        """Run one statement and return its rows as dictionaries, at most MAX_ROWS and a note about more."""
        with self._open_database(write=write) as database:
            cursor = database.execute(query)
            rows = cursor.fetchmany(MAX_ROWS)
            names = [column[0] for column in cursor.description or ()]
            rows_by_name: list[dict[str, Any]] = [dict(zip(names, map(_show_value, row), strict=True)) for row in rows]
            if cursor.fetchone() is not None:
                rows_by_name.append({"note": f"only the first {MAX_ROWS} rows are shown"})
            return rows_by_name

    @contextmanager
    def _open_database(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """Open the database within the block, under the time limit and the access rules; commit at the end if `write`.

        Raises:
            ToolError: the path is no regular file, a statement failed, or the time is over.
        """
        path = os.environ.get("SQLITE_DATABASE") or FILE
        root, parts = self.folder.parts(path, write=write)
        exists = parts[-1] in {entry.name for entry in self.folder.entries(os.path.dirname(path) or ".")}
        if exists and self.folder.entry(path).kind != "file":
            raise ToolError(f"{path} is no regular file")
        end = time.monotonic() + self.settings.timeout
        try:
            with closing(sqlite3.connect(root.joinpath(*parts), timeout=5)) as database:
                if hasattr(database, "setlimit"):  # since Python 3.11
                    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
                database.set_authorizer(_authorize_action)
                database.set_progress_handler(lambda: time.monotonic() > end, STEPS)
                if not write:  # within a transaction, so that the rollback below undoes any change
                    database.execute("BEGIN")
                yield database
                (database.commit if write else database.rollback)()
        except (sqlite3.Error, sqlite3.Warning) as error:
            is_timed_out = time.monotonic() > end
            raise ToolError(
                "the statement exceeded its time limit" if is_timed_out else f"{type(error).__name__}: {error}"
            ) from None


tools = Database.tools


def _authorize_action(
    action: int, pragma_name: str | None, function_name: str | None, schema: str | None, inner: str | None
) -> int:
    """Allow or deny an action of a statement, as SQLite's authorizer callback.

    Denied are other database files, extensions, and all pragmas except those that describe a table.

    Args:
        pragma_name: first argument of the action; for SQLITE_PRAGMA the pragma.
        function_name: second argument of the action; for SQLITE_FUNCTION the function.
    """
    is_denied_pragma = action == sqlite3.SQLITE_PRAGMA and (pragma_name or "").lower() not in PRAGMAS
    loads_extension = action == sqlite3.SQLITE_FUNCTION and (function_name or "").lower() == "load_extension"
    return sqlite3.SQLITE_DENY if action in REFUSED or is_denied_pragma or loads_extension else sqlite3.SQLITE_OK


def _show_value(value: Any) -> Any:
    """Return a value for the answer; binary data only by its size."""
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value
