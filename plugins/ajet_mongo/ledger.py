"""The ledger's document: who trains, which commit holds, and below which position all is over.

Invariant: only the trainer that it names amends it; whoever was named before is fenced off. A use holds once the line
of commits that ends with `head` has the commit that it names.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ajet.store.shared import fenced_trainer_error, other_run_error, other_store_error
from ajet_mongo.connection import Connection
from ajet_mongo.documents import Document
from ajet_mongo.schema import COMMITS, LEDGER, THE_LEDGER, THE_SETTINGS, ledger_of


class Ledger:
    """The run's ledger, as it was read last."""

    def __init__(self, link: Connection) -> None:
        """Made where there is none. Raises UserError."""
        self._link = link
        self._said = ledger_of(link, uuid.uuid4().hex)
        self.own = 0
        """Which trainer this process is; 0: none."""

    @property
    def floor(self) -> int:
        """Positions below are over."""
        return int(self._said["floor"])

    @property
    def trainer(self) -> int:
        """The number of the latest."""
        return int(self._said["trainer"])

    @property
    def open(self) -> str:
        """The commit that is to come."""
        return str(self._said["open"])

    @property
    def void(self) -> list[str]:
        """The commits of earlier trainers that were never ended."""
        return list(self._said["void"])

    def refresh(self) -> None:
        """Read it."""
        (self._said,) = self._link.find(LEDGER, THE_LEDGER)

    def refresh_floor(self) -> None:
        """Read the floor anew, and it alone: a ledger grows long."""
        (said,) = self._link.find(LEDGER, THE_LEDGER, {"floor": 1})
        self._said["floor"] = said["floor"]

    def require_trainer(self) -> None:
        """Read it. Raises TrainerFencedError where another trains by now."""
        self.refresh()
        if not self.own or self.trainer != self.own:
            raise fenced_trainer_error(self._link.shown, self.own, self.trainer)

    def amend(self, change: Any) -> None:
        """Change the ledger as its trainer. Raises TrainerFencedError."""
        found = self._change({**THE_LEDGER, "trainer": self.own}, change)
        if found is None:
            self.require_trainer()
            return
        self._said = found

    def roll(self, at: Mapping[str, Any] | None, run: str) -> None:
        """Be the trainer, from this commit on. Raises UserError."""
        name = None if at is None else at.get("commit")
        if at is not None and not self._link.find(COMMITS, {"_id": name}):
            raise other_store_error(self._link.shown)
        self._change({**THE_LEDGER, "run": None}, {"$set": {"run": run}})
        void = {"$slice": [{"$concatArrays": ["$void", ["$open"]]}, -1000]}
        mine = {"trainer": {"$add": ["$trainer", 1]}, "head": name, "void": void, "open": uuid.uuid4().hex}
        found = self._change({**THE_LEDGER, "run": run}, [{"$set": mine}])
        if found is None:
            raise other_run_error(self._link.shown)
        self._said, self.own = found, found["trainer"]

    def keep_settings(self, text: str) -> None:
        """Keep the run's settings, as its trainer."""
        said = {"$set": {"text": text}}
        self._link.ask(lambda base: base[LEDGER].update_one(THE_SETTINGS, said, upsert=True))

    def begin_commit(self) -> str:
        """The name of the one that is to come, noted after the last."""
        name, made = self.open, {"$setOnInsert": {"earlier": self._said["head"]}}
        self._link.ask(lambda base: base[COMMITS].update_one({"_id": name}, made, upsert=True))
        return name

    def end_commit(self, name: str) -> None:
        """Make the commit hold from now on. Raises TrainerFencedError."""
        self.amend({"$set": {"head": name, "open": uuid.uuid4().hex}})

    def held(self) -> list[str]:
        """The commits that the head goes on from, and itself."""
        return line_of(self._link, self._said["head"])

    def bring(self) -> int:
        """Make one more position, for a task that is in no order; its number."""
        found = self._change(THE_LEDGER, {"$inc": {"brought": 1}})
        assert found is not None
        return int(found["brought"])

    def _change(self, wanted: Document, change: Any) -> Document | None:
        from pymongo import ReturnDocument

        after = ReturnDocument.AFTER
        return self._link.ask(lambda base: base[LEDGER].find_one_and_update(wanted, change, return_document=after))


def line_of(link: Connection, head: str | None) -> list[str]:
    """The commits that `head` goes on from, and itself."""
    earlier = {each["_id"]: each["earlier"] for each in link.find(COMMITS, {})}
    names: list[str] = []
    while head is not None and head in earlier:
        names.append(head)
        head = earlier[head]
    return names
