"""Names the collections, creates their indexes, and checks the version of a database.

Invariant: only a database of this version is opened. Two processes may create a new one at once: each step can be
repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ajet.store.shared import other_version_error

if TYPE_CHECKING:
    from pymongo.database import Database

    from ajet_mongo.connection import MongoConnection

TASK = "Task"
RECORD = "Record"
CALL = "DispatchedSamplingTask"
DATA = "DBRecordData"
BLOB = "Blob"
VERSION = 5
LEDGER, COMMITS, MEMBERS = "ajet_ledger", "ajet_commits", "ajet_members"
THE_LEDGER = {"_id": "ledger"}
THE_SETTINGS = {"_id": "settings"}
"""A separate document for the run's settings, since the ledger is read often."""
INDEXES: dict[str, tuple[list[tuple[str, int]], ...]] = {
    TASK: ([("status", 1), ("_id", 1)], [("uses.of", 1)]),
    RECORD: ([("task", 1)],),
    CALL: ([("record", 1)],),
    DATA: ([("record", 1)],),
    BLOB: ([("record", 1)],),
}


def _create_indexes(base: Database[dict[str, Any]]) -> None:
    """Create the indexes that ajet's queries need. Existing ones stay."""
    from pymongo import IndexModel

    for name, keys in INDEXES.items():
        base[name].create_indexes([IndexModel(key) for key in keys])


def open_ledger(link: MongoConnection, opened: str) -> dict[str, Any]:
    """Read the ledger (the document with the state shared by all processes), or create it in an empty database.

    Args:
        opened: name of the first commit (set of uses between two checkpoints), for a new ledger.

    Returns:
        The ledger document.

    Raises:
        UserError: the database has another version.
    """
    ledger = link.run_durable(lambda base: base[LEDGER].find_one(THE_LEDGER))
    if ledger is None:
        new_ledger: dict[str, Any] = {
            "version": VERSION, "run": None, "trainer": 0, "head": None, "open": opened, "void": [], "brought": 0,
            "floor": 0,
        }  # fmt: skip
        link.run_durable(_create_indexes)
        # Another process may create it at the same time: then its ledger stays, and is read below.
        link.run_durable(lambda base: base[LEDGER].update_one(THE_LEDGER, {"$setOnInsert": new_ledger}, upsert=True))
        ledger = link.run_durable(lambda base: base[LEDGER].find_one(THE_LEDGER))
    assert ledger is not None
    require_version(link.shown, ledger)
    return ledger


def require_version(where: str, ledger: Mapping[str, Any]) -> None:
    """Raise UserError if another version of ajet, with another schema, created the database.

    Args:
        where: address of the database, for the error.
    """
    if ledger["version"] != VERSION:
        raise other_version_error(where, ledger["version"], VERSION)
