"""The episodes in a SQLite store: rows of `ends`, written, read and compared with their digests.

Invariant: everything here happens within the transaction of whoever calls; an episode is read as it was put, or not at
all (`AlteredEpisodeError`). An end that is there already, by its uuid, is put no second time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ajet.record.episode_codec import decode, encode
from ajet.record.secrets import Redactor
from ajet.store.contract import Kept, Lease
from ajet.store.digest import AlteredEpisodeError, digest_episode, explain_alteration

Row = tuple[Any, ...]


class SqliteEpisodes:
    """The episodes in the file `path`."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        self._path, self._redact = path, redact

    def rows(self, lease: Lease, kept: Iterable[Kept]) -> list[Row]:
        """The rows to put, with their digests. Needs no transaction: this is what takes time."""
        rows = []
        for one in kept:
            row, arrays = encode(one.episode)
            about = (one.episode.uuid, lease.order, one.alone, one.ended_by, self._redact.row(row), arrays)
            rows.append((*about, _digest_row(*about)))
        return rows

    @staticmethod
    def put(base: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Insert the rows that are new."""
        base.executemany("INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def of(self, base: sqlite3.Connection, order: int) -> tuple[Kept, ...]:
        """The episodes of a position, as they were put. Raises AlteredEpisodeError."""
        kept = []
        for found in self.each(base, order):
            if isinstance(found, AlteredEpisodeError):
                raise found
            kept.append(found)
        return tuple(kept)

    def each(self, base: sqlite3.Connection, order: int) -> Iterator[Kept | AlteredEpisodeError]:
        """The episodes of a position; in place of one that was changed, how it was."""
        asked = "SELECT uuid, place, alone, ended_by, line, arrays, seal FROM ends WHERE place = ? ORDER BY rowid"
        for uuid, place, alone, ended_by, line, arrays, seal in base.execute(asked, (order,)).fetchall():
            try:
                with explain_alteration(order, uuid, str(self._path), ended_by):
                    if seal != _digest_row(uuid, place, alone, ended_by, line, arrays):
                        raise AlteredEpisodeError
                    kept = Kept(decode(json.loads(line), arrays), bool(alone), ended_by)
            except AlteredEpisodeError as altered:
                yield altered
            else:
                yield kept


def _digest_row(uuid: str, order: int, alone: Any, ended_by: str, line: str, arrays: bytes) -> str:
    return digest_episode(order, uuid, bool(alone), ended_by, line.encode("utf-8", "surrogatepass"), arrays)
