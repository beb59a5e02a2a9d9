"""The collections, their indexes, and how those of an earlier version become today's.

Invariant: the ledger's document says which version a database is of, and only today's is worked on. A step may be done
twice, and by two processes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from pymongo.database import Database

    from ajet.store.mongo.connection import Connection

TASK, RECORD, CALL, DATA = "Task", "Record", "DispatchedSamplingTask", "DBRecordData"
BLOB = "Blob"
LEDGER, COMMITS, MEMBERS = "ajet_ledger", "ajet_commits", "ajet_members"
THE_LEDGER = {"_id": "ledger"}
THE_SETTINGS = {"_id": "settings"}
"""Beside it: the run's settings, which nobody asks for who asks for the ledger again and again."""
INDEXES: dict[str, tuple[list[tuple[str, int]], ...]] = {
    TASK: ([("status", 1), ("_id", 1)], [("uses.of", 1)]),
    RECORD: ([("task", 1)],),
    CALL: ([("record", 1)],),
    DATA: ([("record", 1)],),
    BLOB: ([("record", 1)],),
}


def _indexed(base: Database[dict[str, Any]]) -> None:
    from pymongo import IndexModel

    for name, keys in INDEXES.items():
        base[name].create_indexes([IndexModel(key) for key in keys])


def _used_again(base: Database[dict[str, Any]]) -> None:
    """Uses may have `again`, which an earlier ajet would take for the last ones of their positions."""


def _named_records(base: Database[dict[str, Any]]) -> None:
    """An end of a position names its record, which had the uuid's name before."""


def _made_ahead(base: Database[dict[str, Any]]) -> None:
    """Positions that nobody ever had have documents, which an earlier ajet would pass over."""


STEPS: tuple[Callable[[Database[dict[str, Any]]], None], ...] = (_indexed, _used_again, _named_records, _made_ahead)
"""From the version that is its number to the next."""
VERSION = len(STEPS)


def ledger_of(link: Connection, opened: str) -> dict[str, Any]:
    """The ledger's document, of today's version; made where there is none. `opened`: a name for what the first uses
    belong to. Raises UserError for a later version."""
    new: dict[str, Any] = {
        "version": 0, "run": None, "trainer": 0, "head": None, "open": opened, "void": [], "brought": 0, "floor": 0
    }  # fmt: skip
    ask = link.ask
    found = ask(lambda base: base[LEDGER].find_one(THE_LEDGER))
    if found is None:
        ask(lambda base: base[LEDGER].update_one(THE_LEDGER, {"$setOnInsert": new}, upsert=True))
        found = ask(lambda base: base[LEDGER].find_one(THE_LEDGER))
    assert found is not None
    if found["version"] > VERSION:
        raise of_later_version(link.shown, found["version"])
    for number in range(found["version"], VERSION):
        ask(STEPS[number])
        _raise_version(link, number)
    return found


def of_later_version(where: str, found: int) -> UserError:
    """The error for a database that a later ajet made."""
    return UserError(
        f"The store is of version {found}, made by a later ajet.",
        where=where,
        expected=f"version {VERSION} or before",
        do="Update ajet on this machine.",
    )


def _raise_version(link: Connection, number: int) -> None:
    raised = {"$set": {"version": number + 1}}
    link.ask(lambda base: base[LEDGER].update_one({**THE_LEDGER, "version": number}, raised))
