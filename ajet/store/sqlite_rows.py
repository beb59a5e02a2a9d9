"""Reads and writes the rows of a SQLite store, and checks each value: another program may have changed it.

Invariant: no value of the file raises anything but DamagedRow; a row that nothing depends on is left out instead. What
`SqliteEpisodes` does happens within its caller's transaction; an episode is read as it was put, or not at all
(`AlteredEpisodeError`). An end that is there already, by its uuid, is put no second time.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from ajet.record.bounded_json import parse_json
from ajet.record.episode_codec import decode, encode
from ajet.record.secrets import Redactor
from ajet.schema.errors import AjetError
from ajet.store.contract import Kept, Lease
from ajet.store.digest import AlteredEpisodeError, digest_episode, explain_alteration
from ajet.store.shared import Announced, Member, Policy, Role

LONGEST_VALUE = 60
"""Characters of a wrong value that a message quotes."""


class DamagedRow(AjetError):
    """A row holds what ajet never wrote."""


def read_count(name: str, row: tuple[Any, ...] | None) -> int:
    """The value of a row of `counts`."""
    if row is None or not isinstance(row[0], int):
        raise DamagedRow(f"the count {name!r} is {_quote(row and row[0])}")
    return row[0]


def read_position(row: tuple[Any, ...]) -> int:
    """The position that an attempt's row names."""
    if not isinstance(row[0], int):
        raise DamagedRow(f"an attempt is of position {_quote(row[0])}")
    return row[0]


def read_reasons(text: object) -> list[str]:
    """The reasons of a position. Ones that cannot be read count as one: they are for people."""
    try:
        found = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    return [f"its earlier reasons cannot be read: {_quote(text)}"]


def read_member(row: tuple[Any, ...], now: float) -> Member | None:
    """The member of a row (role, name, seen, joined, told, leases); None: ajet never wrote it."""
    role, name, seen, joined, told, leases = row
    try:
        found = parse_json(told) if isinstance(told, str) else None
    except ValueError:
        return None
    if not (isinstance(name, str) and role in get_args(Role) and isinstance(found, dict)):
        return None
    if not (_is_time(seen) and _is_time(joined)):
        return None
    return Member(role, name, now - seen, now - joined, leases, found)


def read_announced(row: tuple[Any, ...], now: float) -> Announced:
    """The announced policy of a row (said, trainer, time)."""
    said, trainer, time = row
    try:
        policy = Policy(**parse_json(said))
    except (TypeError, ValueError) as error:
        raise DamagedRow(f"the announced policy is {_quote(said)}") from error
    texts = (policy.run, policy.weights, policy.lineage, policy.tokenizer, policy.template)
    numbers = (policy.step, trainer, 0 if policy.below is None else policy.below)
    if not (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int) for each in numbers)
        and isinstance(policy.told, dict)
        and _is_time(time)
    ):
        raise DamagedRow(f"the announced policy is {_quote(said)}")
    return Announced(policy, trainer, now - time)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


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
