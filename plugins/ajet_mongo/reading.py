"""Reads a store in MongoDB without changing it.

Invariant: as in `ajet.store.reader`. A position with missing documents is read again: it may have been released or
replayed meanwhile; only documents still referred to count as changed.
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
    """Read-only access to a store in MongoDB (`ajet.store.reader.Reading`)."""

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        self._link = MongoConnection(uri, database, login, patience=PATIENCE)
        self._records = EpisodeRecords(self._link, SHAPES_ONLY)
        try:
            ledger = self._read_ledger()
            self.run: str = ledger["run"] or ""
            found = self._link.find(LEDGER, THE_SETTINGS)
            self.settings: str = found[0]["text"] if found else ""
            self._names = {*list_commits(self._link, ledger["head"]), ledger["open"]}
        except BaseException:
            self._link.close()
            raise

    def close(self) -> None:
        self._link.close()

    def announced(self) -> Policy | None:
        ledger = self._read_ledger()
        return Policy(**ledger["policy"]) if "policy" in ledger else None

    def begun(self) -> int:
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
        return [each["_id"] for each in found if not steps or {*list_steps(each, self._names)} & {*steps}]

    def position(self, order: int) -> StoredPosition | None:
        found = self._find_named(order)
        while found is not None:
            ends = list(self._records.iterate_episodes(found))
            reread = self._find_named(order)
            altered = any(isinstance(each, AlteredEpisodeError) for each in ends)
            if reread is None or reread["ends"] == found["ends"] or not altered:
                break
            found = reread
        if found is None or reread is None:
            return None
        left = [use["reason"] for use in found["uses"] if use["of"] in self._names and use["reason"] is not None]
        steps = list_steps(found, self._names)
        return build_stored_position(order, STATES[found["status"]], ends, steps, left[-1] if left else "")

    def _find_named(self, order: int) -> Document | None:
        """Return the position if linked to episodes."""
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
