"""Reads a store in MongoDB without changing it.

A position is a task's place in the training order. Invariant: as in `ajet.store.reader`. A position with missing
documents is read again, since a writer may have released or replayed the position meanwhile. Only documents that the
position still refers to count as changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ajet.record.secrets import SHAPES_ONLY
from ajet.store.digest import AlteredEpisodeError
from ajet.store.opening import missing_store_error
from ajet.store.reader import State, StoredPosition, build_stored_position
from ajet.store.shared import Policy
from ajet_mongo.changes import CLOSED, DEAD, NEVER_HAD, OVER, RUNNING, WAITING
from ajet_mongo.connection import MongoConnection
from ajet_mongo.documents import Document
from ajet_mongo.ledger import list_commits
from ajet_mongo.records import EpisodeRecords, list_steps
from ajet_mongo.schema import LEDGER, TASK, THE_LEDGER, THE_SETTINGS, require_version

PATIENCE = 5.0
"""Seconds for the server's answer."""
STATES: dict[str, State] = {WAITING: "waiting", RUNNING: "leased", CLOSED: "closed", OVER: "over", DEAD: "dead"}


class MongoReading:
    """Reads a store in MongoDB without changing it; implements `ajet.store.reader.StoreReader`."""

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        self._link = MongoConnection(uri, database, login, patience=PATIENCE)
        self._records = EpisodeRecords(self._link, SHAPES_ONLY)
        try:
            ledger = self._read_ledger()
            self.run: str = ledger["run"] or ""
            found = self._link.find(LEDGER, THE_SETTINGS)
            self.settings: str = found[0]["text"] if found else ""
            self._valid_commits = {*list_commits(self._link, ledger["head"]), ledger["open"]}
        except BaseException:
            self._link.close()
            raise

    def close(self) -> None:
        self._link.close()

    def announced(self) -> Policy | None:
        """Return the latest announced policy; None without one."""
        ledger = self._read_ledger()
        return Policy(**ledger["policy"]) if "policy" in ledger else None

    def begun(self) -> int:
        """Return the first position of the training order never leased."""
        had = {"_id": {"$gte": 0}, "status": {"$nin": list(NEVER_HAD)}}
        last = self._link.find(TASK, had, {"_id": 1}, order=-1, limit=1)
        return int(last[0]["_id"]) + 1 if last else int(self._read_ledger()["floor"])

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        wanted: dict[str, Any] = {"ends.0": {"$exists": True}}
        if beginning:
            wanted["ends.uuid"] = {"$regex": f"^{re.escape(beginning)}"}
        if steps:
            wanted["uses.step"] = {"$in": list(steps)}
        found = self._link.find(TASK, wanted, {"_id": 1, "uses": 1})
        return [each["_id"] for each in found if not steps or {*list_steps(each, self._valid_commits)} & {*steps}]

    def position(self, order: int) -> StoredPosition | None:
        """Return a position with its episodes; None if the position has none, or was removed meanwhile.

        The position is read again while a writer replaces its episodes.
        """
        document = self._find_position(order)
        while document is not None:
            episodes = list(self._records.iterate_episodes(document))
            reread = self._find_position(order)
            has_altered = any(isinstance(each, AlteredEpisodeError) for each in episodes)
            # With other references to episodes (`ends`) by now, the error came from the change, not from damage.
            if reread is None or reread["ends"] == document["ends"] or not has_altered:
                break
            document = reread
        if document is None or reread is None:
            return None
        valid_uses = [use for use in document["uses"] if use["of"] in self._valid_commits]
        reasons = [use["reason"] for use in valid_uses if use["reason"] is not None]  # only discards have a reason
        steps = list_steps(document, self._valid_commits)
        return build_stored_position(order, STATES[document["status"]], episodes, steps, reasons[-1] if reasons else "")

    def _find_position(self, order: int) -> Document | None:
        """Return the document of a position with episodes; None for other positions."""
        found = self._link.find(TASK, {"_id": order, "ends.0": {"$exists": True}})
        return found[0] if found else None

    def _read_ledger(self) -> Document:
        found = self._link.find(LEDGER, THE_LEDGER)
        if not found:
            raise missing_store_error(self._link.shown)
        require_version(self._link.shown, found[0])
        return found[0]


def check_database(uri: str, database: str, login: tuple[str, str] | None) -> None:
    """Raise UserError for an unusable database, as far as visible without writing."""
    link = MongoConnection(uri, database, login)
    try:
        found = link.find(LEDGER, THE_LEDGER)
        if found:
            require_version(link.shown, found[0])
    finally:
        link.close()
