"""The documents of positions in MongoDB: made, claimed in order, changed one at a time, forgotten below the floor.

Invariant: a position is somebody's by one update of its one document, which each claim marks, so that one whose answer
was lost is known again. Those that wait come first, then those that nobody ever had.

A position that was forgotten is never given out again: its document is gone, those below the ledger's `floor` are over,
and a claim makes no document. Whoever finds none to claim makes some, which nobody gets yet, and gives out those that
it saw there before it read the floor: while a document is there, the floor does not rise above it, and one that was
forgotten before it was made again lies below the floor that is read after. It knows them by their marks: each try to
make some has another, so that what a try makes whose answer was lost is not taken for what was seen.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ajet.store.contract import Lease
from ajet_mongo import changes
from ajet_mongo.changes import FREE, MADE, NEVER_HAD, OVER, WAITING
from ajet_mongo.connection import DUPLICATE, Connection
from ajet_mongo.documents import Document
from ajet_mongo.ledger import Ledger
from ajet_mongo.schema import TASK

if TYPE_CHECKING:
    from pymongo.database import Database

EXPIRES_EVERY = 1.0
"""Seconds between two looks of a process for leases that have ended."""
There = tuple[str, list[Document]]
"""A collection, and the stages of an aggregation over it that yield one document where all is there that was
written."""
AT_ONCE = 32
"""So many positions are made at once."""


class Positions:
    """The positions as one process takes them, under its lock: for so many `seconds`; after `most` attempts that failed
    a position is dead."""

    def __init__(self, link: Connection, ledger: Ledger, seconds: float, most: int) -> None:
        self._link, self._ledger, self._seconds, self._most = link, ledger, seconds, most
        self._next = 0
        """Below, all were made by somebody."""
        self._none_left = True
        self.looked = float("-inf")
        """When this process last looked for leases that have ended, by `time.monotonic`."""

    def before_taking(self) -> None:
        """Is to come before each claim. Raises TrainerFencedError."""
        if self._ledger.own:
            self._ledger.require_trainer()
        if time.monotonic() - self.looked >= EXPIRES_EVERY:
            self.expire()
        self._next = max(self._next, self._ledger.floor)

    def expire(self) -> None:
        """End the leases whose time is over. After an outage their holders get the time to renew them first."""
        self.looked = time.monotonic()
        self._ledger.refresh()
        if self._link.outage.ended_within(self._seconds):
            return
        latest = self._ledger.trainer
        self._link.update(TASK, changes.fallen_silent(), changes.expired(self._most))
        self._link.update(TASK, changes.of_earlier_trainers(latest), [{"$set": {"status": WAITING}}])

    def claim(self, holder: str, wanted: Document, *, upsert: bool = False) -> Document | None:
        """Lease one position that matches `wanted`. `upsert`: it may be new."""
        from pymongo import ReturnDocument

        mark, tries = uuid.uuid4().hex, 0
        change = changes.claim(holder, self._ledger.own, self._seconds, mark)
        options: dict[str, Any] = {"sort": [("_id", 1)], "return_document": ReturnDocument.AFTER, "upsert": upsert}

        def once(base: Database[dict[str, Any]]) -> Document | None:
            nonlocal tries
            tries += 1
            mine = base[TASK].find_one({"mark": mark}) if tries > 1 else None  # by a try whose answer was lost
            return mine or base[TASK].find_one_and_update(wanted, change, **options)

        return self._link.ask(once)

    def claimed(self, holder: str, count: int, below: int | None) -> list[Document]:
        """So many, of those that nobody ever had only those before `below`; none where there
        are no more."""
        found: list[Document] = []
        wanted = changes.to_be_had(self._ledger.floor, below)
        while len(found) < count:
            # a claim waits for the journal even where there is none, so who got none looks first
            if self._none_left and not self._link.find(TASK, wanted, {"_id": 1}, limit=1):
                if not self._make(count - len(found), below):
                    break
                wanted = changes.to_be_had(self._ledger.floor, below)
            one = self.claim(holder, wanted)
            self._none_left = one is None
            found += [one] if one else []
        return found

    def _make(self, count: int, below: int | None) -> bool:
        """Positions that nobody ever had, to be given out; False where there are to be no more."""
        if not (made := self._made()):
            if below is not None and self._next >= below:
                return False
            self._next = max(self._next, self.last() + 1)
            stop = self._next + max(count, AT_ONCE)
            orders = range(self._next, stop if below is None else min(stop, below))
            if not orders:
                return False
            self._insert(orders)
            made = self._made()
        self._ledger.refresh_floor()
        floor = self._ledger.floor
        these = {"status": MADE, "mark": {"$in": [each["mark"] for each in made]}}
        late = [each["_id"] for each in made if each["_id"] < floor]
        fresh = [each["_id"] for each in made if each["_id"] >= floor]
        if late:
            self._link.ask_quickly(lambda base: base[TASK].delete_many({**these, "_id": {"$in": late}}))
        if fresh:
            given = {"$set": {"status": FREE}}
            self._link.ask_quickly(lambda base: base[TASK].update_many({**these, "_id": {"$in": fresh}}, given))
        return True

    def _made(self) -> list[Document]:
        """The positions that nobody gets yet; some may be of who was killed before it gave them out."""
        return self._link.find(TASK, {"status": MADE}, {"mark": 1})

    def _insert(self, orders: Iterable[int]) -> None:
        """Insert positions; those that are there already are another process'."""
        from pymongo.errors import BulkWriteError

        def insert(base: Database[dict[str, Any]]) -> None:
            mark = uuid.uuid4().hex
            try:
                base[TASK].insert_many([{"_id": each, "status": MADE, "mark": mark} for each in orders], ordered=False)
            except BulkWriteError as error:
                if any(each["code"] != DUPLICATE for each in (error.details or {})["writeErrors"]):
                    raise

        self._link.ask_quickly(insert)

    def last(self) -> int:
        """The highest position of which there is or was a document."""
        found = self._link.find(TASK, {"_id": {"$gte": 0}}, {"_id": 1}, order=-1, limit=1)
        return max(self._ledger.floor - 1, *(each["_id"] for each in found), -1)

    def first_never_had(self) -> int:
        """The first position of the order that nobody ever had."""
        found = self._link.find(TASK, {"status": {"$in": NEVER_HAD}}, {"_id": 1}, limit=1)
        return int(found[0]["_id"]) if found else self.last() + 1

    def raise_floor(self) -> None:
        """Below the lowest position that is kept all are over; their documents need not be there."""
        end = self.last() + 1  # as of before the look: what is made meanwhile is somebody's
        kept = {"_id": {"$gte": 0}, "$nor": [{"status": OVER, "ends": None}]}
        lowest = self._link.find(TASK, kept, {"_id": 1}, limit=1)
        floor = lowest[0]["_id"] if lowest else end
        if floor > self._ledger.floor:
            self._ledger.amend({"$max": {"floor": floor}})
        below = {"_id": {"$gte": 0, "$lt": floor}}
        self._link.ask(lambda base: base[TASK].delete_many(below))

    def change(self, wanted: Document, change: changes.Update, *, done: Sequence[str] = ()) -> bool:
        """Change a position; whether it was so. `done`: the states in which it can be where this was done already, by
        a try whose answer was lost."""
        tries = 0

        def once(base: Database[dict[str, Any]]) -> bool:
            nonlocal tries
            tries += 1
            if base[TASK].update_one(wanted, change).matched_count:
                return True
            return tries > 1 and base[TASK].find_one({**wanted, "status": {"$in": list(done)}}) is not None

        return self._link.ask(once)

    def name(self, lease: Lease, there: There, change: changes.Update) -> Document:
        """Make this change, which may be made twice, if what the position is to name is there; in one command, so in
        one life of the server. Answers the position as it is then; nothing where it is gone."""
        collection, stages = there
        into = {"into": TASK, "on": "_id", "whenMatched": change, "whenNotMatched": "discard"}
        asked = [*stages, {"$project": {"_id": {"$literal": lease.order}}}, {"$merge": into}]
        self._link.ask(lambda base: list(base[collection].aggregate(asked)))
        found = self._link.find(TASK, {"_id": lease.order}, {"status": 1, "fence": 1, "ends": 1})
        return found[0] if found else {}
