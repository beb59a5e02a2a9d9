"""The episodes of a store, as documents: written, read, removed.

Invariant: each put has documents of its own, under a name that no other put has: an attempt that is played again has
the same uuid, and who played it before may have been killed between two documents, or go on writing long after its
lease. A record is written before what hangs on it and removed after it, so that nothing hangs on none. One that no
position names is not there, and is swept away by the next trainer. Whose position it is, and whether it counts, is the
business of `mongo_store`.

All of a put is in the server's journal before a position names it, though only the last document is waited for. The
journal is in order: where a server has the last one in it, it has what it took before. But it may have been killed and
be back between two documents, without those that its journal lacked, and the client is told nothing. So after the wait
all are looked for: what is there then was there before the wait, in the same life of the server, or came back from the
journal into a later one, and is in the journal either way. What is not there is written again. In a replica set the
same holds of a member that is elected between two, since what most members have is in order, too.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record.secrets import Redactor
from ajet.store.contract import Kept, Lease
from ajet.store.mongo.changes import RUNNING, naming, set_aside
from ajet.store.mongo.connection import Connection, StoreDown
from ajet.store.mongo.documents import Document, Documents, documents_of, kept_of, score_of
from ajet.store.mongo.schema import BLOB, CALL, DATA, RECORD, TASK
from ajet.store.seal import Altered, OtherKey, Seals, held_whole

if TYPE_CHECKING:
    from pymongo.database import Database

DUPLICATE = 11000
TRIES = 10
"""So often what a server lost between two documents is written; it is started once for each."""
Parts = dict[str, dict[str, list[Document]]]
"""Of each collection, by the record that they are of."""


class Records:
    """Of one database."""

    def __init__(self, link: Connection, redact: Redactor) -> None:
        self._link, self._redact, self._seals = link, redact, Seals()

    def put(self, lease: Lease, kept: Sequence[Kept]) -> list[Document]:
        """Write episodes. Answers how the position is to name them, which it may from now on. Raises StoreDown."""
        names = [f"{one.episode.uuid}/{uuid.uuid4().hex[:12]}" for one in kept]
        for _ in range(TRIES):
            written: Counter[str] = Counter()
            for one, name in zip(kept, names, strict=True):
                written += self._written(lease, one, name, waits=one is kept[-1])
            if self._there(names, written) == written.total():
                return [
                    {"record": name, "uuid": one.episode.uuid, "score": score_of(one.episode)}
                    for one, name in zip(kept, names, strict=True)
                ]
        raise StoreDown(
            "The store's server loses what it takes.", where=self._link.shown, expected="a server that goes on running"
        )

    def take_back(self, lease: Lease, ends: Iterable[Document], position: Document | None) -> None:
        """Of a put: what the position does not name, as another put had the attempt before, or its lease is lost (it is
        None then, and looked up: a try whose answer was lost may have named it)."""
        found = self._link.find(TASK, {"_id": lease.order}) if position is None else [position]
        named = [record_of(end) for each in found for end in each["ends"] or ()]
        self.remove([*{record_of(end) for end in ends}.difference(named)])

    def remove(self, names: Sequence[str]) -> None:
        """Records and what hangs on them."""
        if not names:
            return
        gone = {"$in": list(names)}

        def parts(base: Database[dict[str, Any]]) -> None:
            for name in (BLOB, CALL, DATA):
                base[name].delete_many({"record": gone})

        self._link.ask_quickly(parts)
        self._link.ask(lambda base: base[RECORD].delete_many({"_id": gone}))

    def leases(self, positions: Iterable[Document | None], names: Collection[str] = ()) -> list[Lease]:
        """Positions with what was put of each, and which steps have used it; `names`: of the commits that hold. One of
        which an episode is not what was put lies with the dead letters from now on, and is not among them."""
        tasks = [each for each in positions if each is not None]
        wanted = [record_of(end) for each in tasks for end in each["ends"]]
        parts = self._parts(wanted) if wanted else {}
        leases = []
        for each in tasks:
            try:
                kept = tuple(self._kept(parts, each["_id"], end) for end in each["ends"])
            except Altered as altered:
                why = self._redact(altered.args[0])
                if self._link.update(TASK, naming(each["_id"], altered.args[1]), set_aside(why)):
                    logger.warning("position {} is given to nobody any more: {}", each["_id"], why)
                continue
            leases.append(Lease(each["_id"], each["fence"], kept, steps_of(each, names)))
        return leases

    def whole(self, position: Document) -> bool:
        """Whether all that it names is as it was put. Raises OtherKey where that cannot be told here."""
        parts = self._parts([record_of(end) for end in position["ends"]])
        try:
            for end in position["ends"]:
                self._kept(parts, position["_id"], end)
        except OtherKey:
            raise
        except Altered:
            return False
        return True

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
        named = {"$map": {"input": {"$ifNull": ["$at.ends", []]}, "in": {"$ifNull": ["$$this.record", "$$this.uuid"]}}}
        joined: list[Document] = [
            {"$lookup": {"from": TASK, "localField": "task", "foreignField": "_id", "as": "at"}},
            {"$project": {"fence": 1, "at": {"$first": "$at"}}},
            {"$match": {"$expr": {"$not": {"$in": ["$_id", named]}}}},
            {"$match": {"$expr": {"$or": [{"$ne": ["$at.status", RUNNING]}, {"$ne": ["$at.fence", "$fence"]}]}}},
            {"$project": {"_id": 1}},
        ]
        found = self._link.ask(lambda base: [each["_id"] for each in base[RECORD].aggregate(joined)])
        for start in range(0, len(found), 1000):
            self.remove(found[start : start + 1000])

    def _written(self, lease: Lease, one: Kept, name: str, *, waits: bool) -> Counter[str]:
        """Write an episode's documents, under the record's name. Answers how many of each collection. `waits`: until
        they are in the journal."""
        from pymongo.errors import BulkWriteError, WriteError

        try:
            return self._insert_all(documents_of(one, name, lease, self._redact, self._seals), waits)
        except (BulkWriteError, WriteError):
            self.remove([name])
            as_text = documents_of(one, name, lease, self._redact, self._seals, as_text=True)
            return self._insert_all(as_text, waits)

    def _insert_all(self, parts: Documents, waits: bool) -> Counter[str]:
        """The last of them is waited for."""
        every = [(RECORD, [parts.record]), (BLOB, parts.blobs), (CALL, parts.calls), (DATA, parts.data)]
        there = [(name, documents) for name, documents in every if documents]
        for name, documents in there[:-1]:
            self._insert(name, documents, waits=False)
        self._insert(*there[-1], waits=waits)
        return Counter({name: len(documents) for name, documents in there})

    def _there(self, names: Sequence[str], collections: Iterable[str]) -> int:
        """How many documents of these records the server has, in these collections."""
        wanted, found = {"$in": list(names)}, 0
        for name in collections:
            of_these = {"_id" if name == RECORD else "record": wanted}
            found += len(self._link.find(name, of_these, {"_id": 1}))
        return found

    def _insert(self, name: str, documents: Sequence[Document], *, waits: bool) -> None:
        """Those that are there already are of a try whose answer was lost."""
        from pymongo.errors import AutoReconnect, BulkWriteError

        def insert(base: Database[dict[str, Any]]) -> None:
            try:
                base[name].insert_many(documents, ordered=False)
            except BulkWriteError as error:
                told: Mapping[str, Any] = error.details or {}
                if any(each["code"] != DUPLICATE for each in told["writeErrors"]):
                    raise
                if unsure := told.get("writeConcernErrors"):  # of a server that goes down: it may come back without
                    raise AutoReconnect(f"it does not say that it wrote: {unsure[0].get('errmsg')}") from error

        (self._link.ask if waits else self._link.ask_quickly)(insert)

    def _parts(self, names: Sequence[str]) -> Parts:
        parts: Parts = {RECORD: defaultdict(list)}
        for record in self._link.find(RECORD, {"_id": {"$in": list(names)}}):
            parts[RECORD][record["_id"]].append(record)
        for name in (CALL, DATA, BLOB):
            parts[name] = defaultdict(list)
            for each in self._link.find(name, {"record": {"$in": list(names)}}):
                parts[name][each["record"]].append(each)
        return parts

    def _kept(self, parts: Parts, order: int, end: Document) -> Kept:
        """What a position names. Raises Altered, with the record's name."""
        name = record_of(end)
        try:
            with held_whole(order, end["uuid"], self._link.shown):
                if not parts[RECORD][name]:
                    raise Altered("its record is gone")
                (record,) = parts[RECORD][name]
                calls, data, blobs = (parts[kind][name] for kind in (CALL, DATA, BLOB))
                return kept_of(record, calls, data, blobs, order, self._seals)
        except Altered as altered:
            raise type(altered)(altered.args[0], name) from altered


def record_of(end: Mapping[str, Any]) -> str:
    """The record that an end of a position names; the uuid where a store of an earlier version named it so."""
    return str(end.get("record", end["uuid"]))


def steps_of(position: Document, names: Collection[str]) -> tuple[int, ...]:
    """Of the updates that were over it. `names`: of the commits that hold."""
    return tuple(use["step"] for use in position["uses"] if use["of"] in names and use["reason"] is None)
