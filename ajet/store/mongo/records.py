"""The episodes of a store, as documents: written, read, removed.

Invariant: what belongs to an episode is in the server's journal before its record is written (a server may be killed
and be back between two writes, and nobody is told), and removed before it; a record that no position names is not
there, and is swept away by the next trainer. Whose position it is, and whether it counts, is the business of
`mongo_store`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.record.secrets import Redactor
from ajet.store.contract import Kept, Lease
from ajet.store.mongo.changes import RUNNING
from ajet.store.mongo.connection import Connection
from ajet.store.mongo.documents import Document, documents_of, kept_of, score_of
from ajet.store.mongo.schema import BLOB, CALL, DATA, RECORD, TASK

if TYPE_CHECKING:
    from pymongo.database import Database

DUPLICATE = 11000


class Records:
    """Of one database."""

    def __init__(self, link: Connection, redact: Redactor) -> None:
        self._link, self._redact = link, redact

    def put(self, lease: Lease, kept: Iterable[Kept]) -> list[Document]:
        """Write episodes. Answers how the position is to name those that are new: another may have put one before."""
        new = [one.episode for one in kept if self._written(lease, one)]
        return [{"uuid": episode.uuid, "score": score_of(episode)} for episode in new]

    def take_back(self, lease: Lease, ends: Iterable[Document]) -> None:
        """Of a put under this lease, which is lost; what an earlier put under it made known stays."""
        known = [end["uuid"] for each in self._link.find(TASK, {"_id": lease.order}) for end in each["ends"] or ()]
        late = {end["uuid"] for end in ends}.difference(known)
        wanted = {"_id": {"$in": [*late]}, "task": lease.order, "fence": lease.fence}
        self.remove([each["_id"] for each in self._link.find(RECORD, wanted, {"_id": 1})])

    def remove(self, uuids: Sequence[str]) -> None:
        """Records and what hangs on them."""
        if not uuids:
            return
        gone = {"$in": list(uuids)}

        def parts(base: Database[dict[str, Any]]) -> None:
            for name in (BLOB, CALL, DATA):
                base[name].delete_many({"record": gone})

        self._link.ask_quickly(parts)
        self._link.ask(lambda base: base[RECORD].delete_many({"_id": gone}))

    def leases(self, positions: Iterable[Document | None], names: Collection[str] = ()) -> list[Lease]:
        """Positions with what was put of each, and which steps have used it; `names`: of the commits that hold."""
        tasks = [each for each in positions if each is not None]
        uuids = [end["uuid"] for each in tasks for end in each["ends"]]
        kept = self._kept(uuids) if uuids else {}
        return [
            Lease(each["_id"], each["fence"], tuple(kept[end["uuid"]] for end in each["ends"]), steps_of(each, names))
            for each in tasks
        ]

    def note_uses(self, positions: Iterable[Document], names: Collection[str]) -> None:
        """Records say what became of them: for readers; what counts is the position. `names`: of the commits that
        hold."""
        alike: dict[tuple[tuple[int, ...], bool], list[int]] = defaultdict(list)
        for each in positions:
            left = any(use["reason"] is not None for use in each["uses"] if use["of"] in names)
            alike[steps_of(each, names), left].append(each["_id"])

        def say(base: Database[dict[str, Any]]) -> None:
            for (steps, left), orders in alike.items():
                said: Document = {"trained_count": len(steps), "last_trained_step": steps[-1] if steps else None}
                if left and not steps:
                    said = {"status": "abandoned"}
                base[RECORD].update_many({"task": {"$in": orders}}, {"$set": said})

        self._link.ask_quickly(say)

    def sweep(self) -> None:
        """Remove records that no position names, and whose put can't be under way: its lease is lost."""
        joined: list[Document] = [
            {"$lookup": {"from": TASK, "localField": "task", "foreignField": "_id", "as": "at"}},
            {"$project": {"fence": 1, "at": {"$first": "$at"}}},
            {"$match": {"$expr": {"$not": {"$in": ["$_id", {"$ifNull": ["$at.ends.uuid", []]}]}}}},
            {"$match": {"$expr": {"$or": [{"$ne": ["$at.status", RUNNING]}, {"$ne": ["$at.fence", "$fence"]}]}}},
            {"$project": {"_id": 1}},
        ]
        found = self._link.ask(lambda base: [each["_id"] for each in base[RECORD].aggregate(joined)])
        for start in range(0, len(found), 1000):
            self.remove(found[start : start + 1000])

    def _written(self, lease: Lease, one: Kept) -> bool:
        """Write an episode's documents, the record last. False where another put it before, and it counts."""
        from pymongo.errors import BulkWriteError, WriteError

        for as_text in (False, True):
            parts = documents_of(one, lease.order, lease.fence, self._redact, as_text=as_text)
            try:
                self._insert(BLOB, parts.blobs)
                self._insert(CALL, parts.calls)
                self._insert(DATA, parts.data)
                if not self._insert(RECORD, [parts.record]):
                    break
                return True
            except (BulkWriteError, WriteError):
                if as_text:
                    raise
        for found in self._link.find(RECORD, {"_id": one.episode.uuid}):
            if found["task"] == lease.order and found["fence"] == lease.fence:
                return True  # by this very put, whose answer was lost
            if self._link.find(TASK, {"_id": found["task"], "ends.uuid": one.episode.uuid}, {"_id": 1}):
                return False
        self.remove([one.episode.uuid])
        return self._written(lease, one)

    def _insert(self, name: str, documents: Sequence[Document]) -> bool:
        """False where one was there."""
        from pymongo.errors import AutoReconnect, BulkWriteError

        if not documents:
            return True

        def insert(base: Database[dict[str, Any]]) -> bool:
            try:
                base[name].insert_many(documents, ordered=False)
            except BulkWriteError as error:
                told: Mapping[str, Any] = error.details or {}
                if any(each["code"] != DUPLICATE for each in told["writeErrors"]):
                    raise
                if unsure := told.get("writeConcernErrors"):  # of a server that goes down: it may come back without
                    raise AutoReconnect(f"it does not say that it wrote: {unsure[0].get('errmsg')}") from error
                return False
            return True

        return self._link.ask(insert)

    def _kept(self, uuids: Sequence[str]) -> dict[str, Kept]:
        parts: dict[str, dict[str, list[Document]]] = {}
        for name in (CALL, DATA, BLOB):
            parts[name] = defaultdict(list)
            for each in self._link.find(name, {"record": {"$in": list(uuids)}}):
                parts[name][each["record"]].append(each)
        return {
            record["_id"]: kept_of(record, *(parts[name][record["_id"]] for name in (CALL, DATA, BLOB)))
            for record in self._link.find(RECORD, {"_id": {"$in": list(uuids)}})
        }


def steps_of(position: Document, names: Collection[str]) -> tuple[int, ...]:
    """Of the updates that were over it. `names`: of the commits that hold."""
    return tuple(use["step"] for use in position["uses"] if use["of"] in names and use["reason"] is None)
