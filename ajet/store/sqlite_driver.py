"""How stores in files of SQLite are opened and looked at: the driver of `sqlite:PATH` and of plain paths."""

from __future__ import annotations

from pathlib import Path

from ajet.schema.finding import Finding
from ajet.store.opening import Address, Left
from ajet.store.shared import Opener
from ajet.store.sqlite_reading import SqliteReading, survey_file
from ajet.store.sqlite_store import SqliteStore
from ajet.store.sqlite_tables import look_at


class SqliteDriver:
    """See `ajet.store.opening.StoreDriver`."""

    form = "sqlite:PATH"
    default = "sqlite:store.sqlite"

    def open(self, address: Address, opener: Opener) -> SqliteStore:
        """See `StoreDriver`."""
        return SqliteStore(_path(address), opener)

    def check(self, address: Address, *, made: Path | None = None) -> None:
        """See `StoreDriver`."""
        look_at(_path(address), made=made)

    def read(self, address: Address) -> SqliteReading:
        """See `StoreDriver`."""
        return SqliteReading(_path(address))

    def survey(self, address: Address) -> list[Finding]:
        """See `StoreDriver`."""
        return survey_file(_path(address))

    def find_leftovers(self, address: Address, *, remove: bool = False) -> Left:
        """Return none: a put is one transaction, or is mended as the next run opens the store."""
        return Left()


def _path(address: Address) -> Path:
    assert address.path is not None, "an address with the scheme sqlite has a path"
    return address.path
