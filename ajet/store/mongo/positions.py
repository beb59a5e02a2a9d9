"""The documents of positions in MongoDB: claimed in order, changed one at a time, forgotten below the floor.

Invariant: a position is somebody's by one update of its one document, which each claim marks, so that one whose answer
was lost is known again. Those that wait come first, then those that nobody ever had. A position that was forgotten is
never given out again: those below the ledger's `floor` are over, whatever a late client writes there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ajet.store.mongo import changes
from ajet.store.mongo.changes import OVER, WAITING
from ajet.store.mongo.connection import Connection
from ajet.store.mongo.documents import Document
from ajet.store.mongo.ledger import Ledger
from ajet.store.mongo.schema import TASK

if TYPE_CHECKING:
    from pymongo.database import Database

EXPIRES_EVERY = 1.0
"""Seconds between two looks of a process for leases that have ended."""


class Positions:
    """As one process takes them, under its lock: for so many `seconds`; after `most` attempts that failed a position is
    dead."""

    def __init__(self, link: Connection, ledger: Ledger, seconds: float, most: int) -> None:
        self._link, self._ledger, self._seconds, self._most = link, ledger, seconds, most
        self._next = 0
        self.looked = float("-inf")
        """When this process last looked for leases that have ended, by `time.monotonic`."""

    def before_taking(self) -> None:
        """Is to come before each claim. Raises Fenced."""
        if self._ledger.own:
            self._ledger.require_trainer()
        if time.monotonic() - self.looked >= EXPIRES_EVERY:
            self.expire()
        self._next = max(self._next, self._ledger.floor)

    def expire(self) -> None:
        """End the leases whose time is over."""
        self.looked = time.monotonic()
        self._ledger.refresh()
        latest = self._ledger.trainer
        self._link.update(TASK, changes.fallen_silent(latest), changes.expired(self._most))
        self._link.update(TASK, changes.of_earlier_trainers(latest), [{"$set": {"status": WAITING}}])

    def claim(self, holder: str, wanted: Document, *, upsert: bool = False) -> Document | None:
        """One that is so. `upsert`: it may be new."""
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
        wanted = {"status": WAITING, "_id": {"$gte": self._ledger.floor}}
        while len(found) < count and self._link.find(TASK, wanted, {"_id": 1}, limit=1):  # a claim waits even for none
            found += [one] if (one := self.claim(holder, wanted)) else []
        while len(found) < count and (below is None or self._next < below):
            found += self._fresh(holder)
        return found

    def _fresh(self, holder: str) -> list[Document]:
        """The next position of the order; none where another took it first."""
        from pymongo.errors import DuplicateKeyError

        try:
            one = self.claim(holder, {"_id": self._next, "status": "new"}, upsert=True)
        except DuplicateKeyError:
            self._next = max(self._next, self.last()) + 1
            return []
        self._next += 1
        assert one is not None
        return [one]

    def last(self) -> int:
        """The highest position that anybody ever had."""
        found = self._link.find(TASK, {"_id": {"$gte": 0}}, {"_id": 1}, order=-1, limit=1)
        return max(self._ledger.floor - 1, *(each["_id"] for each in found), -1)

    def none_forgotten(self, found: list[Document]) -> list[Document]:
        """Those that are not over for good: what is below the floor was made by who knew of no floor."""
        if found:
            self._ledger.refresh_floor()
        late = [each["_id"] for each in found if each["_id"] < self._ledger.floor]
        if late:
            self._next = max(self._next, self._ledger.floor)
            self._link.ask(lambda base: base[TASK].delete_many({"_id": {"$in": late}}))
        return [each for each in found if each["_id"] not in late]

    def raise_floor(self) -> None:
        """Below the lowest position that is kept all are over; their documents need not be there."""
        kept = {"_id": {"$gte": 0}, "$nor": [{"status": OVER, "ends": None}]}
        lowest = self._link.find(TASK, kept, {"_id": 1}, limit=1)
        floor = lowest[0]["_id"] if lowest else self.last() + 1
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

    def changed(self, wanted: Document, change: changes.Update) -> Document | None:
        """A position as it is after this change, which may be made twice; None where it was not so."""
        from pymongo import ReturnDocument

        after = ReturnDocument.AFTER
        return self._link.ask(lambda base: base[TASK].find_one_and_update(wanted, change, return_document=after))
