"""Reads a store in MongoDB without changing it.

Invariant: see `ajet.store.reader`. A position whose documents are gone is asked for again: it may have been let go of,
or played anew, meanwhile, and only what it still names was changed.
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
from ajet_mongo.connection import Connection
from ajet_mongo.documents import Document
from ajet_mongo.ledger import line_of
from ajet_mongo.records import Records, steps_of
from ajet_mongo.schema import LEDGER, TASK, THE_LEDGER, THE_SETTINGS, require_version

PATIENCE = 5.0
"""Seconds in which the server has to answer."""
STATES: dict[str, State] = {WAITING: "waiting", RUNNING: "leased", CLOSED: "closed", OVER: "over", DEAD: "dead"}


class MongoReading:
    """See `ajet.store.reader.Reading`."""

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        self._link = Connection(uri, database, login, patience=PATIENCE)
        self._records = Records(self._link, SHAPES_ONLY)
        try:
            said = self._ledger()
            self.run: str = said["run"] or ""
            found = self._link.find(LEDGER, THE_SETTINGS)
            self.settings: str = found[0]["text"] if found else ""
            self._names = {*line_of(self._link, said["head"]), said["open"]}
        except BaseException:
            self._link.close()
            raise

    def close(self) -> None:
        """See `Reading`."""
        self._link.close()

    def announced(self) -> Policy | None:
        """See `Reading`."""
        said = self._ledger()
        return Policy(**said["policy"]) if "policy" in said else None

    def begun(self) -> int:
        """See `Reading`."""
        had = {"_id": {"$gte": 0}, "status": {"$nin": list(NEVER_HAD)}}
        last = self._link.find(TASK, had, {"_id": 1}, order=-1, limit=1)
        return int(last[0]["_id"]) + 1 if last else int(self._ledger()["floor"])

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """See `Reading`."""
        wanted: dict[str, Any] = {"ends.0": {"$exists": True}}
        if beginning:
            wanted["ends.uuid"] = {"$regex": f"^{re.escape(beginning)}"}
        if steps:
            wanted["uses.step"] = {"$in": list(steps)}
        found = self._link.find(TASK, wanted, {"_id": 1, "uses": 1})
        return [each["_id"] for each in found if not steps or {*steps_of(each, self._names)} & {*steps}]

    def position(self, order: int) -> StoredPosition | None:
        """See `Reading`."""
        found = self._named(order)
        while found is not None:
            ends = list(self._records.each(found))
            again = self._named(order)
            altered = any(isinstance(each, AlteredEpisodeError) for each in ends)
            if again is None or again["ends"] == found["ends"] or not altered:
                break
            found = again
        if found is None or again is None:
            return None
        left = [use["reason"] for use in found["uses"] if use["of"] in self._names and use["reason"] is not None]
        steps = steps_of(found, self._names)
        return build_stored_position(order, STATES[found["status"]], ends, steps, left[-1] if left else "")

    def _named(self, order: int) -> Document | None:
        """The position, while it names something."""
        found = self._link.find(TASK, {"_id": order, "ends.0": {"$exists": True}})
        return found[0] if found else None

    def _ledger(self) -> Document:
        found = self._link.find(LEDGER, THE_LEDGER)
        if not found:
            raise missing_store_error(self._link.shown)
        require_version(self._link.shown, found[0])
        return found[0]


def look_at_database(uri: str, database: str, login: tuple[str, str] | None) -> None:
    """Raises UserError for one that cannot be worked on, as far as that can be seen without writing to it."""
    link = Connection(uri, database, login)
    try:
        found = link.find(LEDGER, THE_LEDGER)
        if found:
            require_version(link.shown, found[0])
    finally:
        link.close()
