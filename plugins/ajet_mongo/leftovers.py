"""Unreferenced documents in a database, left by killed clients, for `ajet gc`.

Invariant: a document with a present or later reference from a position is never removed. A record without a position is
unreferenced once its lease is lost. Parts of a missing record were written before a killed server lost the record, or
belong to a put in progress that would write the record a second time. Before removing such parts, a placeholder record
of the same name, without a lease, is inserted, so no position can refer to the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ajet.record.secrets import SHAPES_ONLY
from ajet_mongo.connection import MongoConnection
from ajet_mongo.records import EpisodeRecords
from ajet_mongo.schema import BLOB, CALL, DATA, LEDGER, RECORD, THE_LEDGER, VERSION

if TYPE_CHECKING:
    from pymongo.database import Database

PATIENCE = 5.0
"""Seconds for the server's answer."""


class MongoLeftovers:
    """Finds and removes unreferenced documents of one database. Raises UserError for an unreachable server."""

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        self.link = MongoConnection(uri, database, login, patience=PATIENCE)
        self._records = EpisodeRecords(self.link, SHAPES_ONLY)

    def close(self) -> None:
        """Close the connection to the server."""
        self.link.close()

    def find_leftovers(self) -> tuple[list[str], list[str]]:
        """Return names of unreferenced records, and of missing records with parts.

        Returns no names for a database of another version.
        """
        if not self.link.find(LEDGER, {**THE_LEDGER, "version": VERSION}, {"_id": 1}):
            return [], []
        at: dict[str, Any] = {"from": RECORD, "localField": "_id", "foreignField": "_id", "as": "at"}
        lost: list[dict[str, Any]] = [
            {"$group": {"_id": "$record"}},
            {"$match": {"_id": {"$type": "string"}}},
            {"$lookup": {**at, "pipeline": [{"$project": {"_id": 1}}]}},
            {"$match": {"at": []}},
        ]
        without = {
            each["_id"]
            for name in (CALL, DATA, BLOB)
            for each in self.link.run_durable(lambda base, name=name: list(base[name].aggregate(lost)))  # type: ignore[misc]
        }
        return self._records.find_unnamed(), sorted(without)

    def size(self, names: Sequence[str]) -> int:
        """Return the bytes of the records and their parts."""

        def sum_bytes(base: Database[dict[str, Any]], name: str) -> int:
            these = {"_id" if name == RECORD else "record": {"$in": list(names)}}
            summed: dict[str, Any] = {"$group": {"_id": None, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}}
            stages: list[dict[str, Any]] = [{"$match": these}, summed]
            return sum(int(each["size"]) for each in base[name].aggregate(stages))

        return self.link.run_durable(lambda base: sum(sum_bytes(base, name) for name in (RECORD, CALL, DATA, BLOB)))

    def remove(self, unnamed: Sequence[str], without: Sequence[str]) -> None:
        """Remove the result of `find_leftovers`."""
        from pymongo.errors import DuplicateKeyError

        for name in without:
            try:
                self.link.run_durable(lambda base, name=name: base[RECORD].insert_one({"_id": name}))  # type: ignore[misc]
            except DuplicateKeyError:  # the record was written meanwhile, or by a try whose answer was lost
                continue
            self._records.remove([name], fence=None)  # a record that a put inserts afterwards has a fence, and stays
        self._records.remove(unnamed)
