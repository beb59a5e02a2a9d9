"""A SQLite store that is only read.

Invariant: see `ajet.store.reading`. The file is opened so that nothing can be written; a position and its episodes are
read within one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ajet.record.secrets import SHAPES_ONLY
from ajet.schema.errors import UserError
from ajet.store.opening import no_store
from ajet.store.reading import Stored, stored
from ajet.store.shared import Policy
from ajet.store.sqlite_episodes import SqliteEpisodes
from ajet.store.sqlite_errors import damaged_file
from ajet.store.sqlite_rows import DamagedRow, read_announced, read_count, read_position
from ajet.store.sqlite_store import LINE
from ajet.store.sqlite_tables import bound_statements, is_mistake, require_own, version


@dataclass(slots=True)
class _Uses:
    """The uses of a position that hold."""

    steps: list[int] = field(default_factory=list)
    left: str = ""


class SqliteReading:
    """See `Reading`."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise no_store(f"sqlite:{path}")
        self._path = path
        self._episodes = SqliteEpisodes(path, SHAPES_ONLY)
        with _reporting_errors(path):
            self._base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            with self._asking():
                self._begin()
        except BaseException:
            self._base.close()
            raise

    def close(self) -> None:
        """See `Reading`."""
        self._base.close()

    def announced(self) -> Policy | None:
        """See `Reading`."""
        with self._asking():
            found = self._base.execute("SELECT said FROM policy").fetchone()
            return read_announced((found[0], 0, 0.0), 0.0).policy if found else None

    def begun(self) -> int:
        """See `Reading`."""
        with self._asking():
            return read_count("next", self._base.execute("SELECT value FROM counts WHERE name = 'next'").fetchone())

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """See `Reading`."""
        asked = "SELECT DISTINCT place FROM ends WHERE substr(uuid, 1, ?) = ? ORDER BY place"
        with self._asking():
            found = [read_position(row) for row in self._base.execute(asked, (len(beginning), beginning))]
        return [order for order in found if not steps or {*self._uses_of(order).steps} & {*steps}]

    def position(self, order: int) -> Stored | None:
        """See `Reading`."""
        with self._asking():
            self._base.execute("BEGIN")
            try:
                found = self._base.execute("SELECT state FROM positions WHERE place = ?", (order,)).fetchone()
                ends = list(self._episodes.each(self._base, order))
            finally:
                self._base.execute("ROLLBACK")
        if found is None or not ends:
            return None
        return stored(order, found[0], ends, self._uses_of(order).steps, self._uses_of(order).left)

    def _begin(self) -> None:
        found = version(self._base)
        if not found:
            raise no_store(f"sqlite:{self._path}")
        require_own(self._base, self._path)
        facts = dict(self._base.execute("SELECT name, value FROM facts").fetchall())
        self.run, self.settings = facts.get("run", ""), facts.get("settings", "")
        held = f"{LINE} SELECT place, step, reason FROM uses WHERE of IS NULL OR of IN line ORDER BY step"
        self._uses: dict[int, _Uses] = {}
        for order, step, reason in self._base.execute(held):
            of = self._uses.setdefault(order, _Uses())
            if reason is None:
                of.steps.append(step)
            else:
                of.left = reason

    def _uses_of(self, order: int) -> _Uses:
        return self._uses.get(order, _Uses())

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Within the block the file is asked, for a bounded time."""
        bound_statements(self._base)
        with _reporting_errors(self._path):
            yield


@contextmanager
def _reporting_errors(path: Path) -> Iterator[None]:
    """Raises UserError for what SQLite says of the file."""
    try:
        yield
    except DamagedRow as damaged:
        raise damaged_file(path, damaged) from damaged
    except sqlite3.Error as error:
        if is_mistake(error):
            raise
        raise UserError(
            f"The store cannot be read: {error}.",
            where=f"sqlite:{path}",
            expected="a file that ajet made, whole, in a folder that can be read",
        ) from error
