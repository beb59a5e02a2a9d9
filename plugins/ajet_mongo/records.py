"""Writes, reads and removes the documents of episodes.

A put stores an episode. A record is the main document of one put, and its parts are the other documents. A position is
a task's place in the training order. Invariant: each put has its own documents under a unique name. An attempt that
runs again has the same uuid, and the process of the first one may have been killed between two documents, or continue
to write long after its lease. A record is written before its parts and removed after them, so parts always have a
record. A record that no position refers to does not exist for readers, and the next trainer removes it. `mongo_store`
decides on ownership and validity of positions.

When a position refers to a put, the put is in the server's journal, although documents are written without waiting, at
first even without an acknowledgement (a refused document is missing, and the second attempt reports the refusal). The
journal is ordered: an update follows all earlier writes. But a server may be killed and restarted between two
documents, losing unjournaled documents without notice to the client. The command with the reference
(`MongoPositions.name_records`) therefore first checks the existence of all documents, and refers to none otherwise.
Documents seen by the command were written in the same run of the server, or read from its journal. Either way the
documents precede the reference, and the reference is awaited. Missing documents are written a second time. In a replica
set the same holds for a newly elected member, since the majority's journal is ordered, too.
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
from ajet_mongo.changes import RUNNING, mark_dead, match_record
from ajet_mongo.connection import DUPLICATE, MongoConnection
from ajet_mongo.documents import ABANDONED, READY, Document, Documents, build_documents, parse_documents, read_score
from ajet_mongo.positions import PresenceCheck
from ajet_mongo.schema import BLOB, CALL, DATA, RECORD, TASK

if TYPE_CHECKING:
    from pymongo.database import Database

MAX_TRIES = 10
"""Maximum number of attempts to write documents that a server loses. It loses them only in a restart."""
Parts = dict[str, dict[str, list[Document]]]
"""Documents by collection and record."""


class EpisodeRecords:
    """Writes, reads and removes the documents of episodes in one database."""

    def __init__(self, link: MongoConnection, redact: Redactor) -> None:
        self._link, self._redact = link, redact

    @staticmethod
    def build_ends(entries: Iterable[Kept]) -> list[Document]:
        """Return a position's references to new episodes: each has a new unique record name, the uuid and the score."""
        return [
            {"record": f"{uuid}/{uuid4().hex[:12]}", "uuid": uuid, "score": read_score(attempt.episode)}
            for attempt in entries
            for uuid in [attempt.episode.uuid]
        ]

    def write_episodes(
        self, lease: Lease, entries: Sequence[Kept], ends: Sequence[Document], *, is_acknowledged: bool
    ) -> PresenceCheck:
        """Write the documents of episodes.

        Returns:
            A check that all documents exist, which is made when the position gets its references.

        Args:
            lease: the lease under which the episodes are written.
            ends: the position's references to the episodes.
            is_acknowledged: True to wait for the server's answer to each document; False leaves out a refused document
                without an error.
        """
        written: Counter[str] = Counter()
        for attempt, end in zip(entries, ends, strict=True):
            written += self._write_episode(lease, attempt, end["record"], is_acknowledged)
        names: Document = {"$in": [end["record"] for end in ends]}
        these = {"_id": names, "fence": lease.fence}
        stages: list[Document] = [{"$match": these}, {"$group": {"_id": None, RECORD: {"$sum": 1}}}]
        for name in (CALL, DATA, BLOB):
            if written[name]:
                of_these = [{"$match": {"record": names}}, {"$count": "count"}]
                stages.append({"$lookup": {"from": name, "pipeline": of_these, "as": name}})
        all_there = {RECORD: written[RECORD]} | {f"{name}.count": written[name] for name in written if name != RECORD}
        return RECORD, [*stages, {"$match": all_there}]

    def make_loss_error(self) -> StoreDownError:
        """Return the error for a server that has lost documents repeatedly."""
        return StoreDownError(
            "The MongoDB server of the store loses data that it has confirmed.",
            where=self._link.shown,
            expected="a server that keeps running",
        )

    def remove(self, names: Sequence[str], **so: object) -> None:
        """Remove records and their parts.

        Args:
            names: names of the records.
            so: further fields and values that a record must have to be removed; parts are removed anyway.
        """
        if not names:
            return
        names_query = {"$in": list(names)}

        def parts(base: Database[dict[str, Any]]) -> None:
            for name in (BLOB, CALL, DATA):
                base[name].delete_many({"record": names_query})

        self._link.run_quick(parts)
        self._link.run_durable(lambda base: base[RECORD].delete_many({"_id": names_query, **so}))

    def build_leases(self, positions: Iterable[Document | None], names: Collection[str] = ()) -> list[Lease]:
        """Load the episodes of positions, and return the positions as leases.

        A position with an episode that was altered in the database is given up and left out.

        Args:
            positions: documents of positions; None is skipped.
            names: names of the valid commits, which decide the steps that used a position.
        """
        tasks = [position for position in positions if position is not None]
        records = [end["record"] for task in tasks for end in task["ends"]]
        parts = self._load_parts(records) if records else {}
        leases = []
        for task in tasks:
            read_attempts = [self._read_episode(parts, task["_id"], end) for end in task["ends"]]
            episodes = tuple(attempt for attempt in read_attempts if isinstance(attempt, Kept))
            if len(episodes) == len(read_attempts):
                leases.append(Lease(task["_id"], task["fence"], episodes, list_steps(task, names)))
                continue
            record, altered = next(
                (end["record"], attempt)
                for end, attempt in zip(task["ends"], read_attempts, strict=True)
                if not isinstance(attempt, Kept)
            )
            reason = self._redact(str(altered))
            if self._link.update(TASK, match_record(task["_id"], record), mark_dead(reason)):
                logger.warning("the task at position {} is given up: {}", task["_id"], reason)
        return leases

    def iterate_episodes(self, position: Document) -> Iterator[Kept | AlteredEpisodeError]:
        """Yield each episode of a position, or an error in its place if it was altered in the database."""
        parts = self._load_parts([end["record"] for end in position["ends"]])
        yield from (self._read_episode(parts, position["_id"], end) for end in position["ends"])

    def is_unchanged(self, position: Document) -> bool:
        """Return True if no episode of a position was altered in MongoDB since it was written."""
        return not any(isinstance(episode, AlteredEpisodeError) for episode in self.iterate_episodes(position))

    def note_uses(self, positions: Iterable[Document], names: Collection[str]) -> None:
        """Copy the steps that used a position into its episodes' records, for other readers of the database.

        Advantages of steps that did not use the position are removed. ajet itself reads the steps from the positions.

        Args:
            positions: documents of positions.
            names: names of the valid commits.
        """
        orders_by_use: dict[tuple[tuple[int, ...], str | None], list[int]] = defaultdict(list)
        for position in positions:
            reasons = [use["reason"] for use in position["uses"] if use["of"] in names and use["reason"] is not None]
            orders_by_use[list_steps(position, names), reasons[-1] if reasons else None].append(position["_id"])

        def update_records(base: Database[dict[str, Any]]) -> None:
            for (steps, reason), orders in orders_by_use.items():
                trainable = {"task": {"$in": orders}, "$or": [{"status": READY}, {"untrained": {"$exists": True}}]}
                removal: Document = {"$pull": {"advantages": {"step": {"$nin": list(steps)}}}}
                fields: Document = {"trained_count": len(steps), "last_trained_step": steps[-1] if steps else None}
                if reason and not steps:
                    change: Document = {"$set": {**fields, "status": ABANDONED, "untrained": reason}, **removal}
                else:
                    change = {"$set": {**fields, "status": READY}, "$unset": {"untrained": ""}, **removal}
                base[RECORD].update_many(trainable, change)

        self._link.run_quick(update_records)

    def note_advantages(self, advantages: Mapping[str, float], step: int) -> None:
        """Write the advantages of a step into the episodes' records, for other readers of the database.

        Args:
            advantages: advantage by name of the record.
        """
        from pymongo import UpdateOne

        def noted(advantage: float) -> list[Document]:
            others = {"$filter": {"input": {"$ifNull": ["$advantages", []]}, "cond": {"$ne": ["$$this.step", step]}}}
            return [{"$set": {"advantages": {"$concatArrays": [others, [{"step": step, "advantage": advantage}]]}}}]

        changes = [UpdateOne({"_id": name}, noted(advantage)) for name, advantage in advantages.items()]
        if changes:
            self._link.run_quick(lambda base: base[RECORD].bulk_write(changes, ordered=False))

    def remove_unnamed(self) -> None:
        """Remove the records that `find_unnamed` returns."""
        unnamed = self.find_unnamed()
        for start in range(0, len(unnamed), 1000):
            self.remove(unnamed[start : start + 1000])

    def find_unnamed(self) -> list[str]:
        """Return the names of records that no position refers to and will refer to, because their lease was lost."""
        names = {"$ifNull": ["$at.ends.record", []]}
        joined: list[Document] = [
            {"$lookup": {"from": TASK, "localField": "task", "foreignField": "_id", "as": "at"}},
            {"$project": {"fence": 1, "at": {"$first": "$at"}}},
            {"$match": {"$expr": {"$not": {"$in": ["$_id", names]}}}},
            {"$match": {"$expr": {"$or": [{"$ne": ["$at.status", RUNNING]}, {"$ne": ["$at.fence", "$fence"]}]}}},
            {"$project": {"_id": 1}},
        ]
        return self._link.run_durable(lambda base: [each["_id"] for each in base[RECORD].aggregate(joined)])

    def _write_episode(self, lease: Lease, one: Kept, name: str, is_acknowledged: bool) -> Counter[str]:
        """Write the documents of an episode, as compressed JSON if the server refuses the readable form.

        Args:
            one: the episode.
            name: unique name of its record.

        Returns:
            The number of documents by collection.
        """
        from pymongo.errors import BulkWriteError, WriteError

        try:
            return self._insert_all(build_documents(one, name, lease, self._redact), is_acknowledged)
        except (BulkWriteError, WriteError):
            self.remove([name])
            as_text = build_documents(one, name, lease, self._redact, as_text=True)
            return self._insert_all(as_text, is_acknowledged)

    def _insert_all(self, parts: Documents, is_acknowledged: bool) -> Counter[str]:
        every = [(RECORD, [parts.record]), (BLOB, parts.blobs), (CALL, parts.calls), (DATA, parts.data)]
        nonempty = [(name, documents) for name, documents in every if documents]
        for name, documents in nonempty:
            self.insert_documents(name, documents, is_acknowledged=is_acknowledged)
        return Counter({name: len(documents) for name, documents in nonempty})

    def insert_documents(self, name: str, documents: Sequence[Document], *, is_acknowledged: bool) -> None:
        """Insert documents into the collection `name`.

        Existing documents are not changed: they were written by an attempt whose answer was lost.
        """
        from pymongo.errors import AutoReconnect, BulkWriteError

        def insert(base: Database[dict[str, Any]]) -> None:
            try:
                base[name].insert_many(documents, ordered=False)
            except BulkWriteError as error:
                details: Mapping[str, Any] = error.details or {}
                if any(each["code"] != DUPLICATE for each in details["writeErrors"]):
                    raise
                # A server that shuts down reports this error. It may restart without the documents, so insert again.
                if unsure := details.get("writeConcernErrors"):
                    raise AutoReconnect(f"the server does not confirm the write: {unsure[0].get('errmsg')}") from error

        (self._link.run_quick if is_acknowledged else self._link.send_unacknowledged)(insert)

    def _load_parts(self, names: Sequence[str]) -> Parts:
        parts: Parts = {RECORD: defaultdict(list)}
        for record in self._link.find(RECORD, {"_id": {"$in": list(names)}}):
            parts[RECORD][record["_id"]].append(record)
        for name in (CALL, DATA, BLOB):
            parts[name] = defaultdict(list)
            for each in self._link.find(name, {"record": {"$in": list(names)}}):
                parts[name][each["record"]].append(each)
        return parts

    def _read_episode(self, parts: Parts, order: int, end: Document) -> Kept | AlteredEpisodeError:
        """Return an episode, or an error in its place if it was altered in the database.

        Args:
            parts: the loaded documents.
            order: the position of the episode's task.
            end: the position's reference to the episode.
        """
        name = end["record"]
        sampler = next((record.get("ended_by") for record in parts[RECORD][name]), "")
        try:
            with explain_alteration(order, end["uuid"], self._link.shown, sampler):
                if not parts[RECORD][name]:
                    raise AlteredEpisodeError("its record is missing")
                (record,) = parts[RECORD][name]
                calls, data, blobs = (parts[kind][name] for kind in (CALL, DATA, BLOB))
                return parse_documents(record, calls, data, blobs, order)
        except AlteredEpisodeError as altered:
            return altered


def list_steps(position: Document, names: Collection[str]) -> tuple[int, ...]:
    """List the training steps that used a position, without those that discarded it.

    Args:
        position: the position's document.
        names: names of the valid commits.
    """
    return tuple(use["step"] for use in position["uses"] if use["of"] in names and use["reason"] is None)
