"""The episodes of a store, as documents: written, read, removed.

Invariant: each put has documents of its own, under a name that no other put has: an attempt that is played again has
the same uuid, and who played it before may have been killed between two documents, or go on writing long after its
lease. A record is written before what hangs on it and removed after it, so that nothing hangs on none. One that no
position names is not there, and is swept away by the next trainer. Whose position it is, and whether it counts, is the
business of `mongo_store`.

All of a put is in the server's journal when a position that names it is, though none of its documents is waited for,
nor, at first, an answer to any (a document that the server refused is not there, and is told of at the second try).
The journal is in order: where a server has an update in it, it has what it took before. But it may have been killed and
be back between two documents, without those that its journal lacked, and the client is told nothing. So the command
that names them (`Positions.name`) looks for all of them first, and names none unless all are there. What it sees, the
same life of the server took, or a later one read from the journal; either way it comes before the name there, and the
name is waited for. What is not there is written again. In a replica set the same holds of a member that is elected
between two, since what most members have is in order, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from loguru import logger

from ajet.record.secrets import Redactor
from ajet.store.contract import Kept, Lease, StoreDownError
from ajet.store.digest import AlteredEpisodeError, explain_alteration
from ajet_mongo.changes import RUNNING, naming, set_aside
from ajet_mongo.connection import DUPLICATE, Connection
from ajet_mongo.documents import ABANDONED, READY, Document, Documents, documents_of, kept_of, score_of
from ajet_mongo.positions import There
from ajet_mongo.schema import BLOB, CALL, DATA, RECORD, TASK

if TYPE_CHECKING:
    from pymongo.database import Database

TRIES = 10
"""So often what a server lost between two documents is written; it is started once for each."""
Parts = dict[str, dict[str, list[Document]]]
"""Of each collection, by the record that they are of."""


class Records:
    """The records of episodes in one database."""

    def __init__(self, link: Connection, redact: Redactor) -> None:
        self._link, self._redact = link, redact

    @staticmethod
    def ends(kept: Iterable[Kept]) -> list[Document]:
        """The entries by which a position names what is put: records of names that no other put has."""
        return [
            {"record": f"{uuid}/{uuid4().hex[:12]}", "uuid": uuid, "score": score_of(one.episode)}
            for one in kept
            for uuid in [one.episode.uuid]
        ]

    def written(self, lease: Lease, kept: Sequence[Kept], ends: Sequence[Document], *, heard: bool) -> There:
        """Write episodes. Answers how a position is to ask whether all of them are there; only then may it name them.
        `heard`: what the server says of each document is waited for. Without, one that it refused is not there."""
        written: Counter[str] = Counter()
        for one, end in zip(kept, ends, strict=True):
            written += self._written(lease, one, end["record"], heard)
        names: Document = {"$in": [end["record"] for end in ends]}
        these = {"_id": names, "fence": lease.fence}
        stages: list[Document] = [{"$match": these}, {"$group": {"_id": None, RECORD: {"$sum": 1}}}]
        for name in (CALL, DATA, BLOB):
            if written[name]:
                of_these = [{"$match": {"record": names}}, {"$count": "count"}]
                stages.append({"$lookup": {"from": name, "pipeline": of_these, "as": name}})
        all_there = {RECORD: written[RECORD]} | {f"{name}.count": written[name] for name in written if name != RECORD}
        return RECORD, [*stages, {"$match": all_there}]

    def loses(self) -> StoreDownError:
        """The error for a server whose documents are gone each time."""
        return StoreDownError(
            "The store's server loses what it takes.", where=self._link.shown, expected="a server that goes on running"
        )

    def remove(self, names: Sequence[str], **so: object) -> None:
        """Records and what hangs on them; the records themselves only where they are `so`."""
        if not names:
            return
        gone = {"$in": list(names)}

        def parts(base: Database[dict[str, Any]]) -> None:
            for name in (BLOB, CALL, DATA):
                base[name].delete_many({"record": gone})

        self._link.ask_quickly(parts)
        self._link.ask(lambda base: base[RECORD].delete_many({"_id": gone, **so}))

    def leases(self, positions: Iterable[Document | None], names: Collection[str] = ()) -> list[Lease]:
        """Positions with what was put of each, and which steps have used it; `names`: of the commits that hold. One of
        which an episode is not what was put lies with the dead letters from now on, and is not among them."""
        tasks = [each for each in positions if each is not None]
        wanted = [end["record"] for each in tasks for end in each["ends"]]
        parts = self._parts(wanted) if wanted else {}
        leases = []
        for each in tasks:
            found = [self._read(parts, each["_id"], end) for end in each["ends"]]
            kept = tuple(one for one in found if isinstance(one, Kept))
            if len(kept) == len(found):
                leases.append(Lease(each["_id"], each["fence"], kept, steps_of(each, names)))
                continue
            record, altered = next(
                (end["record"], one) for end, one in zip(each["ends"], found, strict=True) if not isinstance(one, Kept)
            )
            why = self._redact(str(altered))
            if self._link.update(TASK, naming(each["_id"], record), set_aside(why)):
                logger.warning("position {} is given to nobody any more: {}", each["_id"], why)
        return leases

    def each(self, position: Document) -> Iterator[Kept | AlteredEpisodeError]:
        """The episodes that a position names; in place of one that was changed, how it was."""
        parts = self._parts([end["record"] for end in position["ends"]])
        yield from (self._read(parts, position["_id"], end) for end in position["ends"])

    def is_unchanged(self, position: Document) -> bool:
        """True if all that a position names is as it was put."""
        return not any(isinstance(each, AlteredEpisodeError) for each in self.each(position))

    def note_uses(self, positions: Iterable[Document], names: Collection[str]) -> None:
        """Records that may be trained on say what became of them: for readers; what counts is the position. `names`: of
        the commits that hold. Of an advantage that a step gave which is none of these no more is said."""
        alike: dict[tuple[tuple[int, ...], str | None], list[int]] = defaultdict(list)
        for each in positions:
            left = [use["reason"] for use in each["uses"] if use["of"] in names and use["reason"] is not None]
            alike[steps_of(each, names), left[-1] if left else None].append(each["_id"])

        def say(base: Database[dict[str, Any]]) -> None:
            for (steps, left), orders in alike.items():
                trainable = {"task": {"$in": orders}, "$or": [{"status": READY}, {"untrained": {"$exists": True}}]}
                gone: Document = {"$pull": {"advantages": {"step": {"$nin": list(steps)}}}}
                said: Document = {"trained_count": len(steps), "last_trained_step": steps[-1] if steps else None}
                if left and not steps:
                    change: Document = {"$set": {**said, "status": ABANDONED, "untrained": left}, **gone}
                else:
                    change = {"$set": {**said, "status": READY}, "$unset": {"untrained": ""}, **gone}
                base[RECORD].update_many(trainable, change)

        self._link.ask_quickly(say)

    def note_advantages(self, told: Mapping[str, float], step: int) -> None:
        """Note at each record the advantage that this step's update gave it, once, for readers."""
        from pymongo import UpdateOne

        def noted(advantage: float) -> list[Document]:
            others = {"$filter": {"input": {"$ifNull": ["$advantages", []]}, "cond": {"$ne": ["$$this.step", step]}}}
            return [{"$set": {"advantages": {"$concatArrays": [others, [{"step": step, "advantage": advantage}]]}}}]

        changes = [UpdateOne({"_id": name}, noted(advantage)) for name, advantage in told.items()]
        if changes:
            self._link.ask_quickly(lambda base: base[RECORD].bulk_write(changes, ordered=False))

    def sweep(self) -> None:
        """Remove records that no position names, and whose put can't be under way."""
        found = self.unnamed()
        for start in range(0, len(found), 1000):
            self.remove(found[start : start + 1000])

    def unnamed(self) -> list[str]:
        """The records that no position names, since the lease that they were put under is lost."""
        named = {"$ifNull": ["$at.ends.record", []]}
        joined: list[Document] = [
            {"$lookup": {"from": TASK, "localField": "task", "foreignField": "_id", "as": "at"}},
            {"$project": {"fence": 1, "at": {"$first": "$at"}}},
            {"$match": {"$expr": {"$not": {"$in": ["$_id", named]}}}},
            {"$match": {"$expr": {"$or": [{"$ne": ["$at.status", RUNNING]}, {"$ne": ["$at.fence", "$fence"]}]}}},
            {"$project": {"_id": 1}},
        ]
        return self._link.ask(lambda base: [each["_id"] for each in base[RECORD].aggregate(joined)])

    def _written(self, lease: Lease, one: Kept, name: str, heard: bool) -> Counter[str]:
        """Write an episode's documents, under the record's name. Answers how many of each collection."""
        from pymongo.errors import BulkWriteError, WriteError

        try:
            return self._insert_all(documents_of(one, name, lease, self._redact), heard)
        except (BulkWriteError, WriteError):
            self.remove([name])
            as_text = documents_of(one, name, lease, self._redact, as_text=True)
            return self._insert_all(as_text, heard)

    def _insert_all(self, parts: Documents, heard: bool) -> Counter[str]:
        every = [(RECORD, [parts.record]), (BLOB, parts.blobs), (CALL, parts.calls), (DATA, parts.data)]
        there = [(name, documents) for name, documents in every if documents]
        for name, documents in there:
            self._insert(name, documents, heard=heard)
        return Counter({name: len(documents) for name, documents in there})

    def _insert(self, name: str, documents: Sequence[Document], *, heard: bool) -> None:
        """Insert documents; those that are there already are of a try whose answer was lost."""
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

        (self._link.ask_quickly if heard else self._link.tell)(insert)

    def _parts(self, names: Sequence[str]) -> Parts:
        parts: Parts = {RECORD: defaultdict(list)}
        for record in self._link.find(RECORD, {"_id": {"$in": list(names)}}):
            parts[RECORD][record["_id"]].append(record)
        for name in (CALL, DATA, BLOB):
            parts[name] = defaultdict(list)
            for each in self._link.find(name, {"record": {"$in": list(names)}}):
                parts[name][each["record"]].append(each)
        return parts

    def _read(self, parts: Parts, order: int, end: Document) -> Kept | AlteredEpisodeError:
        """Return the episode that `end` names; in place of one that was changed, how it was."""
        name = end["record"]
        sampler = next((record.get("ended_by") for record in parts[RECORD][name]), "")
        try:
            with explain_alteration(order, end["uuid"], self._link.shown, sampler):
                if not parts[RECORD][name]:
                    raise AlteredEpisodeError("its record is gone")
                (record,) = parts[RECORD][name]
                calls, data, blobs = (parts[kind][name] for kind in (CALL, DATA, BLOB))
                return kept_of(record, calls, data, blobs, order)
        except AlteredEpisodeError as altered:
            return altered


def steps_of(position: Document, names: Collection[str]) -> tuple[int, ...]:
    """The steps of the updates that were over a position. `names`: of the commits that hold."""
    return tuple(use["step"] for use in position["uses"] if use["of"] in names and use["reason"] is None)
