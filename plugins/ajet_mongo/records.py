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
        """Use a connection to the database.

        Args:
            redact: removes secrets from what is written.
        """
        self._link, self._redact = link, redact

    @staticmethod
    def build_ends(entries: Iterable[Kept]) -> list[Document]:
        """Return a task position's references to new episodes.

        Each has a new unique name of the record (the episode's main document), the episode's uuid and its score.
        """
        return [
            {"record": f"{uuid}/{uuid4().hex[:12]}", "uuid": uuid, "score": read_score(attempt.episode)}
            for attempt in entries
            for uuid in [attempt.episode.uuid]
        ]

    def write_episodes(
        self, lease: Lease, entries: Sequence[Kept], ends: Sequence[Document], *, is_acknowledged: bool
    ) -> PresenceCheck:
        """Write the documents of episodes, and return a check that all of them exist.

        The task position gets its references to the episodes only if the check holds then.

        Args:
            lease: the lease under which the episodes are written.
            ends: the position's references to the episodes, in the order of `entries`.
            is_acknowledged: True to wait for the server's answer to each document; False leaves out a refused document
                without an error.

        Returns:
            A collection, and aggregation stages on it that yield one document if all documents exist, else none.
        """
        written: Counter[str] = Counter()
        for attempt, end in zip(entries, ends, strict=True):
            written += self._write_episode(lease, attempt, end["record"], is_acknowledged)
        # Count the documents of each collection, and compare the counts with the numbers written.
        names: Document = {"$in": [end["record"] for end in ends]}
        own_records = {"_id": names, "fence": lease.fence}
        stages: list[Document] = [{"$match": own_records}, {"$group": {"_id": None, RECORD: {"$sum": 1}}}]
        for collection in (CALL, DATA, BLOB):
            if written[collection]:
                count_parts = [{"$match": {"record": names}}, {"$count": "count"}]
                stages.append({"$lookup": {"from": collection, "pipeline": count_parts, "as": collection}})
        expected_counts = {RECORD: written[RECORD]} | {
            f"{collection}.count": written[collection] for collection in written if collection != RECORD
        }
        return RECORD, [*stages, {"$match": expected_counts}]

    def make_loss_error(self) -> StoreDownError:
        """Return the error for a server that has repeatedly lost documents that it had confirmed."""
        return StoreDownError(
            "The MongoDB server of the store loses data that it has confirmed.",
            where=self._link.shown,
            expected="a server that keeps running",
        )

    def remove(self, names: Sequence[str], **so: object) -> None:
        """Remove records (main documents of episodes) and their parts, the other documents.

        Args:
            names: names of the records.
            so: further fields and values that a record must have to be removed; parts are removed anyway.
        """
        if not names:
            return
        names_query = {"$in": list(names)}

        def remove_parts(base: Database[dict[str, Any]]) -> None:
            for collection in (BLOB, CALL, DATA):
                base[collection].delete_many({"record": names_query})

        self._link.run_quick(remove_parts)
        # Records last, so that parts always have a record by which they can be found.
        self._link.run_durable(lambda base: base[RECORD].delete_many({"_id": names_query, **so}))

    def build_leases(self, positions: Iterable[Document | None], names: Collection[str] = ()) -> list[Lease]:
        """Load the episodes of task positions, and return the positions as leases.

        A position with an episode that was altered in the database is given up and left out.

        Args:
            positions: documents of positions; None is skipped.
            names: names of the valid commits (sets of uses between two checkpoints), from which a lease gets the steps
                that used its position.
        """
        tasks = [position for position in positions if position is not None]
        records = [end["record"] for task in tasks for end in task["ends"]]
        documents = self._load_parts(records) if records else {}
        leases = []
        for task in tasks:
            read_attempts = [self._read_episode(documents, task["_id"], end) for end in task["ends"]]
            episodes = tuple(attempt for attempt in read_attempts if isinstance(attempt, Kept))
            if len(episodes) == len(read_attempts):
                leases.append(Lease(task["_id"], task["fence"], episodes, list_steps(task, names)))
                continue
            altered_record, error = next(
                (end["record"], attempt)
                for end, attempt in zip(task["ends"], read_attempts, strict=True)
                if not isinstance(attempt, Kept)
            )
            reason = self._redact(str(error))
            # The position may have other references by now: then it is unharmed, and the update matches nothing.
            if self._link.update(TASK, match_record(task["_id"], altered_record), mark_dead(reason)):
                logger.warning("the task at position {} is given up: {}", task["_id"], reason)
        return leases

    def iterate_episodes(self, position: Document) -> Iterator[Kept | AlteredEpisodeError]:
        """Yield each episode of a task position, or an error in its place if it was altered in the database."""
        documents = self._load_parts([end["record"] for end in position["ends"]])
        yield from (self._read_episode(documents, position["_id"], end) for end in position["ends"])

    def is_unchanged(self, position: Document) -> bool:
        """Return True if no episode of a task position was altered in MongoDB since it was written."""
        return not any(isinstance(episode, AlteredEpisodeError) for episode in self.iterate_episodes(position))

    def note_uses(self, positions: Iterable[Document], names: Collection[str]) -> None:
        """Copy the steps that used a task position into its episodes' records, for other readers of the database.

        Advantages of steps that did not use the position are removed. ajet itself reads the steps from the positions.

        Args:
            positions: documents of positions.
            names: names of the valid commits (sets of uses between two checkpoints). Other uses do not count.
        """
        # Positions with the same steps and reason are updated together.
        orders_by_use: dict[tuple[tuple[int, ...], str | None], list[int]] = defaultdict(list)
        for position in positions:
            reasons = [use["reason"] for use in position["uses"] if use["of"] in names and use["reason"] is not None]
            orders_by_use[list_steps(position, names), reasons[-1] if reasons else None].append(position["_id"])

        def update_records(base: Database[dict[str, Any]]) -> None:
            """Update the records of all task positions, with one update per combination of steps and discard reason."""
            for (steps, reason), orders in orders_by_use.items():
                # Records that are ready to train, and those that an earlier call marked as discarded.
                trainable = {"task": {"$in": orders}, "$or": [{"status": READY}, {"untrained": {"$exists": True}}]}
                removal: Document = {"$pull": {"advantages": {"step": {"$nin": list(steps)}}}}
                fields: Document = {"trained_count": len(steps), "last_trained_step": steps[-1] if steps else None}
                if reason and not steps:  # discarded without ever being trained on
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

        def build_update(advantage: float) -> list[Document]:
            """Return the update that adds the advantage, in place of an earlier one of the same step."""
            earlier = {"$filter": {"input": {"$ifNull": ["$advantages", []]}, "cond": {"$ne": ["$$this.step", step]}}}
            return [{"$set": {"advantages": {"$concatArrays": [earlier, [{"step": step, "advantage": advantage}]]}}}]

        changes = [UpdateOne({"_id": name}, build_update(advantage)) for name, advantage in advantages.items()]
        if changes:
            self._link.run_quick(lambda base: base[RECORD].bulk_write(changes, ordered=False))

    def remove_unnamed(self) -> None:
        """Remove episodes' documents that no task position refers to and whose lease was lost."""
        unnamed = self.find_unnamed()
        for start in range(0, len(unnamed), 1000):
            self.remove(unnamed[start : start + 1000])

    def find_unnamed(self) -> list[str]:
        """Return the names of records (main documents of episodes) that no task position refers to.

        A record whose lease is still valid is left out, since its position may still refer to it later.
        """
        referenced_records = {"$ifNull": ["$at.ends.record", []]}
        stages: list[Document] = [  # join each record with its position, as the field `at`
            {"$lookup": {"from": TASK, "localField": "task", "foreignField": "_id", "as": "at"}},
            {"$project": {"fence": 1, "at": {"$first": "$at"}}},
            {"$match": {"$expr": {"$not": {"$in": ["$_id", referenced_records]}}}},
            # A record under the position's present lease belongs to a put that is still in progress.
            {"$match": {"$expr": {"$or": [{"$ne": ["$at.status", RUNNING]}, {"$ne": ["$at.fence", "$fence"]}]}}},
            {"$project": {"_id": 1}},
        ]
        return self._link.run_durable(lambda base: [record["_id"] for record in base[RECORD].aggregate(stages)])

    def _write_episode(self, lease: Lease, entry: Kept, name: str, is_acknowledged: bool) -> Counter[str]:
        """Write the documents of an episode, as compressed JSON if the server refuses the readable form.

        Args:
            entry: the episode.
            name: unique name of its record.
            is_acknowledged: True to wait for the server's answer; without it a refusal is not noticed.

        Returns:
            The number of documents by collection.
        """
        from pymongo.errors import BulkWriteError, WriteError

        try:
            return self._insert_all(build_documents(entry, name, lease, self._redact), is_acknowledged)
        except (BulkWriteError, WriteError):
            self.remove([name])
            as_text = build_documents(entry, name, lease, self._redact, as_text=True)
            return self._insert_all(as_text, is_acknowledged)

    def _insert_all(self, episode_documents: Documents, is_acknowledged: bool) -> Counter[str]:
        """Insert the documents of an episode, its record first, and return their number by collection.

        Parts are written after their record, so that parts left by a killed process can be found by it.
        """
        by_collection = [
            (RECORD, [episode_documents.record]),
            (BLOB, episode_documents.blobs),
            (CALL, episode_documents.calls),
            (DATA, episode_documents.data),
        ]
        nonempty = [(collection, documents) for collection, documents in by_collection if documents]
        for collection, documents in nonempty:
            self.insert_documents(collection, documents, is_acknowledged=is_acknowledged)
        return Counter({collection: len(documents) for collection, documents in nonempty})

    def insert_documents(self, name: str, documents: Sequence[Document], *, is_acknowledged: bool) -> None:
        """Insert documents into the collection `name`.

        Existing documents are not changed: they were written by an attempt whose answer was lost.

        Args:
            is_acknowledged: True to wait for the server's answer, without the journal; False returns after sending.

        Raises:
            BulkWriteError: the server refused a document.
        """
        from pymongo.errors import AutoReconnect, BulkWriteError

        def insert(base: Database[dict[str, Any]]) -> None:
            try:
                base[name].insert_many(documents, ordered=False)
            except BulkWriteError as error:
                details: Mapping[str, Any] = error.details or {}
                if any(write_error["code"] != DUPLICATE for write_error in details["writeErrors"]):
                    raise
                # A server that shuts down reports this error. It may restart without the documents, so insert again.
                # The connection retries after an AutoReconnect.
                if errors := details.get("writeConcernErrors"):
                    raise AutoReconnect(f"the server does not confirm the write: {errors[0].get('errmsg')}") from error

        (self._link.run_quick if is_acknowledged else self._link.send_unacknowledged)(insert)

    def _load_parts(self, names: Sequence[str]) -> Parts:
        """Load all documents of episodes: by collection, then by name of the record (main document)."""
        loaded: Parts = {RECORD: defaultdict(list)}
        for record in self._link.find(RECORD, {"_id": {"$in": list(names)}}):
            loaded[RECORD][record["_id"]].append(record)
        for collection in (CALL, DATA, BLOB):
            loaded[collection] = defaultdict(list)
            for document in self._link.find(collection, {"record": {"$in": list(names)}}):
                loaded[collection][document["record"]].append(document)
        return loaded

    def _read_episode(self, parts: Parts, order: int, end: Document) -> Kept | AlteredEpisodeError:
        """Return an episode, or an error in its place if it was altered in the database.

        Args:
            parts: the loaded documents by collection and record.
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
                calls, data, blobs = (parts[collection][name] for collection in (CALL, DATA, BLOB))
                return parse_documents(record, calls, data, blobs, order)
        except AlteredEpisodeError as altered:
            return altered


def list_steps(position: Document, names: Collection[str]) -> tuple[int, ...]:
    """List the training steps that used a task position, without those that discarded it.

    Args:
        position: the position's document.
        names: names of the valid commits (sets of uses between two checkpoints). Other uses were undone.
    """
    # Only a discard has a reason.
    return tuple(use["step"] for use in position["uses"] if use["of"] in names and use["reason"] is None)
