"""What lies in a database of ours and is nobody's: of puts whose client was killed, for `ajet gc`.

Invariant: nothing that a position names, or may yet name, is taken for nobody's, whoever plays meanwhile. A record that
no position names is nobody's once the lease that it was put under is lost. What hangs on a record that is not there was
written into a server that was killed and had lost the record, or is of a put under way, which would write it again:
before it goes, another record of that name is put in its place, of no lease, so that no position names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ajet.record.secrets import SHAPES_ONLY
from ajet_mongo.connection import Connection
from ajet_mongo.records import Records
from ajet_mongo.schema import BLOB, CALL, DATA, LEDGER, RECORD, THE_LEDGER, VERSION

if TYPE_CHECKING:
    from pymongo.database import Database

PATIENCE = 5.0
"""Seconds in which the server has to answer."""


class Leftovers:
    """Finds and removes the leftovers in one database. Raises UserError where its server does not answer."""

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        self._link = Connection(uri, database, login, patience=PATIENCE)
        self._records = Records(self._link, SHAPES_ONLY)

    def close(self) -> None:
        """Let go of the server."""
        self._link.close()

    def found(self) -> tuple[list[str], list[str]]:
        """Names of records that are nobody's, and of records that are not there, of which other documents are. None of
        a database of another version."""
        if not self._link.find(LEDGER, {**THE_LEDGER, "version": VERSION}, {"_id": 1}):
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
            for each in self._link.ask(lambda base, name=name: list(base[name].aggregate(lost)))  # type: ignore[misc]
        }
        return self._records.unnamed(), sorted(without)

    def size(self, names: Sequence[str]) -> int:
        """Bytes of these records and what hangs on them."""

        def of(base: Database[dict[str, Any]], name: str) -> int:
            these = {"_id" if name == RECORD else "record": {"$in": list(names)}}
            summed: dict[str, Any] = {"$group": {"_id": None, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}}
            stages: list[dict[str, Any]] = [{"$match": these}, summed]
            return sum(int(each["size"]) for each in base[name].aggregate(stages))

        return self._link.ask(lambda base: sum(of(base, name) for name in (RECORD, CALL, DATA, BLOB)))

    def remove(self, unnamed: Sequence[str], without: Sequence[str]) -> None:
        """Remove what `found` answered."""
        from pymongo.errors import DuplicateKeyError

        for name in without:
            try:
                self._link.ask(lambda base, name=name: base[RECORD].insert_one({"_id": name}))  # type: ignore[misc]
            except DuplicateKeyError:  # it has come meanwhile, or an earlier try's answer was lost
                continue
            self._records.remove([name], fence=None)  # not the one that a put has there once this one's is gone
        self._records.remove(unnamed)
