"""The ledger: one document with the current trainer, the latest commit, and the floor of finished positions.

A position is a task's place in the training order. A use says that a training step used or discarded a position's
group. A commit groups the uses between two checkpoints, and refers to the previous commit. Invariant: only the ledger's
trainer changes the document, and changes by earlier trainers fail. A use is valid if its commit is in the chain that
ends at `head`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ajet.store.shared import fenced_trainer_error, other_run_error, other_store_error
from ajet_mongo.connection import MongoConnection
from ajet_mongo.documents import Document
from ajet_mongo.schema import COMMITS, LEDGER, THE_LEDGER, THE_SETTINGS, open_ledger


class Ledger:
    """The state shared by all processes of a store, as last read from the database."""

    def __init__(self, link: MongoConnection) -> None:
        """Read the ledger, or create it in an empty database. Raises UserError for a store of another version."""
        self._link = link
        self._document = open_ledger(link, uuid.uuid4().hex)
        self.own = 0
        """The trainer number of the current process, 0 for other processes."""

    @property
    def floor(self) -> int:
        """The lowest position in the training order that may be unfinished. Lower ones have no documents any more."""
        return int(self._document["floor"])

    @property
    def trainer(self) -> int:
        """The number of the process that became the store's trainer last, counted from 1; 0 before the first."""
        return int(self._document["trainer"])

    @property
    def open(self) -> str:
        """The name of the next commit, which will make all uses of groups since the last checkpoint valid."""
        return str(self._document["open"])

    @property
    def void(self) -> list[str]:
        """Names of commits that earlier trainers did not finish. Uses of groups in such a commit are undone.

        A commit is the set of uses between two checkpoints.
        """
        return list(self._document["void"])

    def refresh(self) -> None:
        """Read the ledger, the document with the state shared by all processes, from the database again."""
        (self._document,) = self._link.find(LEDGER, THE_LEDGER)

    def refresh_floor(self) -> None:
        """Read only the floor again, since the whole document may be large."""
        (ledger,) = self._link.find(LEDGER, THE_LEDGER, {"floor": 1})
        self._document["floor"] = ledger["floor"]

    def require_trainer(self) -> None:
        """Read the ledger, and raise TrainerFencedError unless this process is the latest trainer."""
        self.refresh()
        if not self.own or self.trainer != self.own:
            raise fenced_trainer_error(self._link.shown, self.own, self.trainer)

    def amend(self, change: Any) -> None:
        """Change the ledger (the document with the shared state), if this process is still the trainer.

        Args:
            change: an update in MongoDB's language.

        Raises:
            TrainerFencedError: another process has become the trainer.
        """
        changed = self._change_document({**THE_LEDGER, "trainer": self.own}, change)
        if changed is None:
            self.require_trainer()
            return
        self._document = changed

    def take_over(self, at: Mapping[str, Any] | None, run: str) -> None:
        """Make this process the store's trainer, and make uses after the resumed checkpoint invalid.

        A use says that a training step used a group. An earlier trainer that still runs cannot change the ledger any
        more.

        Args:
            at: the store's state in the resumed checkpoint (`MongoStore.commit`), or None to start without uses.
            run: id of the run.

        Raises:
            UserError: the checkpoint or the run does not belong to this store.
        """
        commit = None if at is None else at.get("commit")
        if at is not None and not self._link.find(COMMITS, {"_id": commit}):
            raise other_store_error(self._link.shown)
        self._change_document({**THE_LEDGER, "run": None}, {"$set": {"run": run}})  # a new store gets its run
        # A trainer that still runs may write uses under the open commit. The list of such commits lets us undo them.
        # It is cut to the newest 1000, so that the document does not grow without limit.
        void = {"$slice": [{"$concatArrays": ["$void", ["$open"]]}, -1000]}
        new_fields = {"trainer": {"$add": ["$trainer", 1]}, "head": commit, "void": void, "open": uuid.uuid4().hex}
        changed = self._change_document({**THE_LEDGER, "run": run}, [{"$set": new_fields}])
        if changed is None:  # the store belongs to another run
            raise other_run_error(self._link.shown)
        self._document, self.own = changed, changed["trainer"]

    def keep_settings(self, text: str) -> None:
        """Store the run's settings (resolved YAML) for readers. Only the trainer calls this."""
        change = {"$set": {"text": text}}
        self._link.run_durable(lambda base: base[LEDGER].update_one(THE_SETTINGS, change, upsert=True))

    def begin_commit(self) -> str:
        """Create the commit of all uses of groups since the last checkpoint, and return its name.

        A commit names the one before it. Its uses stay invalid until `end_commit`.
        """
        name, change = self.open, {"$setOnInsert": {"earlier": self._document["head"]}}
        self._link.run_durable(lambda base: base[COMMITS].update_one({"_id": name}, change, upsert=True))
        return name

    def end_commit(self, name: str) -> None:
        """Make a commit (set of uses between two checkpoints) the latest one, so that its uses become valid.

        Raises:
            TrainerFencedError: another process has become the trainer.
        """
        self.amend({"$set": {"head": name, "open": uuid.uuid4().hex}})

    def list_held_commits(self) -> list[str]:
        """List the names of the valid commits (sets of uses between two checkpoints), the latest one first."""
        return list_commits(self._link, self._document["head"])

    def add_position(self) -> int:
        """Count one more task position for a client's own task, and return its number, counted from 1."""
        changed = self._change_document(THE_LEDGER, {"$inc": {"brought": 1}})
        assert changed is not None
        return int(changed["brought"])

    def _change_document(self, wanted: Document, change: Any) -> Document | None:
        """Change the ledger if it matches a filter, and return it after the change, or None if it does not match."""
        from pymongo import ReturnDocument

        after = ReturnDocument.AFTER
        return self._link.run_durable(
            lambda base: base[LEDGER].find_one_and_update(wanted, change, return_document=after)
        )


def list_commits(link: MongoConnection, head: str | None) -> list[str]:
    """List the names of a commit (set of uses between two checkpoints) and of all before it, the latest first.

    Args:
        head: name of the commit, or None for an empty list.
    """
    previous_by_name = {commit["_id"]: commit["earlier"] for commit in link.find(COMMITS, {})}
    names: list[str] = []
    while head is not None and head in previous_by_name:
        names.append(head)
        head = previous_by_name[head]
    return names
