"""Creates, leases, changes and deletes the documents of positions in MongoDB.

A position is a task's place in the training order. Positions below the ledger's `floor` are finished, and their
documents are deleted ("forgotten"). Invariant: a lease is a single update of the position's document with a mark (a
unique text), so a claim with a lost answer is recognized. Waiting positions come first, then free positions, which were
never leased.

A forgotten position is never leased a second time: its document is gone, positions below the ledger's `floor` are
finished, and a claim creates no document. A process without a free position creates some, unleasable at first, and then
frees all positions seen before reading the floor. While a document exists, the floor does not pass its position, and a
forgotten, recreated position lies below the floor read later. Marks identify the seen documents: each attempt to create
has another mark, so documents of an attempt with a lost answer are not confused with seen documents.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ajet.store.contract import Lease
from ajet_mongo import changes
from ajet_mongo.changes import FREE, MADE, NEVER_HAD, OVER, WAITING
from ajet_mongo.connection import DUPLICATE, MongoConnection
from ajet_mongo.documents import Document
from ajet_mongo.ledger import Ledger
from ajet_mongo.schema import TASK

if TYPE_CHECKING:
    from pymongo.database import Database

EXPIRES_EVERY = 1.0
"""Seconds between two searches of a process for expired leases."""
PresenceCheck = tuple[str, list[Document]]
"""Name of a collection, and aggregation stages that yield a document if all documents of a put exist."""
AT_ONCE = 32
"""Number of positions created at once."""


class MongoPositions:
    """Leases and changes positions for one process, which holds its lock during each call."""

    def __init__(self, link: MongoConnection, ledger: Ledger, seconds: float, limit: int) -> None:
        """Start without leases.

        Args:
            seconds: duration of a lease.
            limit: number of failed attempts after which a task position is not leased any more.
        """
        self._link = link
        self._ledger = ledger
        self._lease_seconds = seconds
        self._max_attempts = limit
        self._next = 0
        """Positions below this one were created, by this or another process."""
        self._none_left = True
        """True if the last claim found no position, or before the first claim."""
        self.expired_at = float("-inf")
        """Time of the last search for expired leases, by `time.monotonic`."""

    def prepare_claim(self) -> None:
        """Prepare to lease task positions: end leases that have expired, at most once a second.

        Raises:
            TrainerFencedError: this process was the trainer, and another one has taken over.
        """
        if self._ledger.own:
            self._ledger.require_trainer()
        if time.monotonic() - self.expired_at >= EXPIRES_EVERY:
            self.expire()
        self._next = max(self._next, self._ledger.floor)

    def expire(self) -> None:
        """End leases past their deadline, and leases of earlier trainers. Their task positions can be leased by others.

        For one lease time after an outage of the server no lease ends, so that holders can renew their leases first.
        """
        self.expired_at = time.monotonic()
        self._ledger.refresh()
        if self._link.outage.ended_within(self._lease_seconds):
            return
        latest = self._ledger.trainer
        self._link.update(TASK, changes.match_expired(), changes.record_expiry(self._max_attempts))
        self._link.update(TASK, changes.match_earlier_trainers(latest), [{"$set": {"status": WAITING}}])

    def claim(self, holder: str, wanted: Document, *, upsert: bool = False) -> Document | None:
        """Lease the first task position that matches a filter.

        Args:
            holder: name of the process that leases the position.
            wanted: filter.
            upsert: True to create the position if none matches.

        Returns:
            The position's document, or None if none matches.
        """
        from pymongo import ReturnDocument

        mark, tries = uuid.uuid4().hex, 0  # the connection calls `claim_once` again after a lost answer
        change = changes.build_claim(holder, self._ledger.own, self._lease_seconds, mark)
        options: dict[str, Any] = {"sort": [("_id", 1)], "return_document": ReturnDocument.AFTER, "upsert": upsert}

        def claim_once(base: Database[dict[str, Any]]) -> Document | None:
            nonlocal tries
            tries += 1
            # An earlier try may have claimed the position, and its answer was lost.
            claimed = base[TASK].find_one({"mark": mark}) if tries > 1 else None
            return claimed or base[TASK].find_one_and_update(wanted, change, **options)

        return self._link.run_durable(claim_once)

    def claim_many(self, holder: str, count: int, below: int | None) -> list[Document]:
        """Lease the first task positions that are available.

        Args:
            holder: name of the process that leases the positions.
            count: maximum number of positions.
            below: first position that may not be leased for the first time, or None without a limit.

        Returns:
            The positions' documents.
        """
        claimed: list[Document] = []
        query = changes.match_available(self._ledger.floor, below)
        while len(claimed) < count:
            # A claim waits for the journal even if no position is free, so look first if the last claim found none.
            if self._none_left and not self._link.find(TASK, query, {"_id": 1}, limit=1):
                if not self._make_positions(count - len(claimed), below):
                    break
                query = changes.match_available(self._ledger.floor, below)
            task = self.claim(holder, query)
            self._none_left = task is None
            claimed += [task] if task else []
        return claimed

    def _make_positions(self, count: int, below: int | None) -> bool:
        """Create task positions that can be leased, or free those that a process created but did not free.

        A position is created in a state in which it cannot be leased, and then freed.

        Args:
            count: number of positions wanted.
            below: first position that may not be created, or None without a limit.

        Returns:
            False if no further position may be created.
        """
        if not (new_positions := self._find_made()):  # else first free those of another process
            if below is not None and self._next >= below:
                return False
            self._next = max(self._next, self.find_last() + 1)
            stop = self._next + max(count, AT_ONCE)
            orders = range(self._next, stop if below is None else min(stop, below))
            if not orders:
                return False
            self.insert_positions(orders)
            new_positions = self._find_made()
        # Read the floor after the documents: a position below it was finished and forgotten, and now created again.
        self._ledger.refresh_floor()
        floor = self._ledger.floor
        # The marks restrict the changes to the documents read above, not those created again meanwhile.
        seen = {"status": MADE, "mark": {"$in": [position["mark"] for position in new_positions]}}
        finished_orders = [position["_id"] for position in new_positions if position["_id"] < floor]
        new_orders = [position["_id"] for position in new_positions if position["_id"] >= floor]
        if finished_orders:
            self._link.run_quick(lambda base: base[TASK].delete_many({**seen, "_id": {"$in": finished_orders}}))
        if new_orders:
            set_free = {"$set": {"status": FREE}}
            self._link.run_quick(lambda base: base[TASK].update_many({**seen, "_id": {"$in": new_orders}}, set_free))
        return True

    def _find_made(self) -> list[Document]:
        """Return task positions that were created and not yet freed, perhaps by a killed process."""
        return self._link.find(TASK, {"status": MADE}, {"mark": 1})

    def insert_positions(self, orders: Iterable[int]) -> None:
        """Insert documents of task positions, which cannot be leased yet.

        Documents that another process has inserted stay unchanged.
        """
        from pymongo.errors import BulkWriteError

        def insert(base: Database[dict[str, Any]]) -> None:
            mark = uuid.uuid4().hex  # a new one for each try, so that a reader can tell the tries' documents apart
            try:
                base[TASK].insert_many(
                    [{"_id": order, "status": MADE, "mark": mark} for order in orders], ordered=False
                )
            except BulkWriteError as error:
                if any(write_error["code"] != DUPLICATE for write_error in (error.details or {})["writeErrors"]):
                    raise

        self._link.run_quick(insert)

    def find_last(self) -> int:
        """Return the highest task position that has or had a document, or -1 without one."""
        tasks = self._link.find(TASK, {"_id": {"$gte": 0}}, {"_id": 1}, order=-1, limit=1)
        return max(self._ledger.floor - 1, *(task["_id"] for task in tasks), -1)

    def find_first_unclaimed(self) -> int:
        """Return the first position of the training order that was never leased."""
        tasks = self._link.find(TASK, {"status": {"$in": NEVER_HAD}}, {"_id": 1}, limit=1)
        return int(tasks[0]["_id"]) if tasks else self.find_last() + 1

    def raise_floor(self) -> None:
        """Delete the documents of all positions in the training order below the lowest unfinished one.

        Its number is stored as the `floor` of the ledger, the document with the state shared by all processes. A
        position is finished once no step uses it any more and its episodes are removed.
        """
        end = self.find_last() + 1  # read first: positions created meanwhile belong to other processes
        # `ends` holds the episodes. Negative ids are groups of clients, which are not in the training order.
        unfinished = {"_id": {"$gte": 0}, "$nor": [{"status": OVER, "ends": None}]}
        lowest = self._link.find(TASK, unfinished, {"_id": 1}, limit=1)
        floor = lowest[0]["_id"] if lowest else end
        if floor > self._ledger.floor:
            self._ledger.amend({"$max": {"floor": floor}})
        below = {"_id": {"$gte": 0, "$lt": floor}}
        self._link.run_durable(lambda base: base[TASK].delete_many(below))

    def change(self, wanted: Document, change: changes.Update, *, done: Sequence[str] = ()) -> bool:
        """Change the task position that matches a filter.

        Args:
            wanted: filter by number and state, and mostly by fence (number of the latest lease).
            change: the update.
            done: states that the change leads to. If the first try's answer was lost, a position in such a state counts
                as changed.

        Returns:
            True if a position matched.
        """
        tries = 0

        def change_once(base: Database[dict[str, Any]]) -> bool:
            nonlocal tries
            tries += 1
            if base[TASK].update_one(wanted, change).matched_count:
                return True
            return tries > 1 and base[TASK].find_one({**wanted, "status": {"$in": list(done)}}) is not None

        return self._link.run_durable(change_once)

    def name_records(self, lease: Lease, there: PresenceCheck, change: changes.Update) -> Document:
        """Add references to episodes to a task position, if all documents of the episodes exist.

        Check and change are a single command, so the server cannot restart in between and lose documents.

        Args:
            there: the check that the documents exist.
            change: the update that adds the references; repeating it has no effect.

        Returns:
            State, fence and references of the position afterwards, or {} for a missing position.
        """
        collection, stages = there
        # The stages yield a document if all exist. It is turned into the position's id, to which `$merge` applies the
        # change. Without it, nothing is merged.
        into = {"into": TASK, "on": "_id", "whenMatched": change, "whenNotMatched": "discard"}
        pipeline = [*stages, {"$project": {"_id": {"$literal": lease.order}}}, {"$merge": into}]
        self._link.run_durable(lambda base: list(base[collection].aggregate(pipeline)))
        tasks = self._link.find(TASK, {"_id": lease.order}, {"status": 1, "fence": 1, "ends": 1})
        return tasks[0] if tasks else {}
