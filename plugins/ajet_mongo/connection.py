"""The way to the server: one client, one write concern, and what is done while nobody answers.

Invariant: an operation is asked again until `PATIENCE` is over where the connection broke, so each of them is one that
may have happened already. What the server refuses is not asked again. On return of a durable write it is in the journal
of the server, or of most of a replica set, with all that was written before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.schema.errors import MissingExtraError
from ajet.schema.secrets import replace_secret_shapes
from ajet.store.contract import StoreDownError, StoreUnreachableError
from ajet.store.outage import Outage

if TYPE_CHECKING:
    from pymongo.database import Database

PATIENCE = 60.0
"""Seconds."""
ANSWER_MS = 30_000
"""Within which a server that is there answers."""
_NO_ROOM = 14031
"""Code: no room on its disk."""
_NOT_NOW = (50, 64, 100, 262)
"""Codes: not in time, not by enough members. A set that lost members may have them again."""
_GOES_DOWN = (91, 189, 10058, 10107, 11600, 11602, 13435, 13436)
"""Codes of a member that is shut down, or elected no more, while it waits for its journal or for the others."""
DUPLICATE = 11000
"""Code: it is there already."""
CANNOT_WRITE = "The store's server cannot write"
T = TypeVar("T")


class Connection:
    """To one database."""

    def __init__(
        self,
        uri: str,
        database: str,
        login: tuple[str, str] | None,
        later: float | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        """`login`: user and password. `patience`: seconds until the first contact. `later`: seconds that the owner
        waits afterwards (`outage.patience`), which bound one answer. Raises MissingExtraError, StoreDownError."""
        try:
            from pymongo import MongoClient, ReadPreference, WriteConcern
            from pymongo.errors import PyMongoError
        except ImportError as error:
            raise MissingExtraError("pymongo", "mongo", needed_for="A store in MongoDB") from error
        self.shown = f"{replace_secret_shapes(uri.rstrip('/'), '…')}/{database}"
        self.outage = Outage(self.shown, patience)
        answer_ms = int(min(ANSWER_MS, 1000 * max(patience if later is None else later, 0.1)))
        options: dict[str, Any] = {"appname": "ajet", "connectTimeoutMS": 5000, "socketTimeoutMS": answer_ms}
        options["serverSelectionTimeoutMS"] = int(1000 * min(patience, 5.0))
        options |= {"username": login[0], "password": login[1]} if login else {}
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(uri, **options)
        except PyMongoError as error:
            raise StoreDownError(f"The store's address cannot be used: {error}", where=self.shown) from error
        # of a member that lags behind, a position would name what is not there yet
        base = self._client.get_database(database, read_preference=ReadPreference.PRIMARY)
        self._quick = base.with_options(write_concern=WriteConcern(w=1))  # whatever the address says: w=0 has no errors
        self._unheard = base.with_options(write_concern=WriteConcern(w=0))
        self._durable = base.with_options(write_concern=WriteConcern(w="majority", j=True, wtimeout=answer_ms))

    def ask(self, operation: Callable[[Database[dict[str, Any]]], T]) -> T:
        """What the operation answers, durable where it writes. Raises StoreDownError, and pymongo's own where the
        server refuses a document."""
        return self._asked(operation, self._durable)

    def ask_quickly(self, operation: Callable[[Database[dict[str, Any]]], T]) -> T:
        """Ask for a write that becomes durable with the next durable one."""
        return self._asked(operation, self._quick)

    def tell(self, operation: Callable[[Database[dict[str, Any]]], None]) -> None:
        """Send writes that no answer is waited for: whoever makes them looks whether they happened."""
        self._asked(operation, self._unheard)

    def find(
        self,
        name: str,
        wanted: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        *,
        order: int = 1,
        limit: int = 0,
    ) -> list[dict[str, Any]]:
        """Documents of a collection, by their names."""
        return self.ask(lambda base: list(base[name].find(wanted, fields, limit=limit).sort("_id", order)))

    def update(self, name: str, wanted: Mapping[str, Any], change: Any) -> int:
        """Change all documents that match; the number that matched, less where an answer was lost."""
        return self.ask(lambda base: base[name].update_many(wanted, change).matched_count)

    def aged(self, name: str, wanted: Mapping[str, Any], *times: str) -> list[dict[str, Any]]:
        """Documents, with the seconds since each of these times, by the server's clock, as `TIME_age`."""
        ages = {f"{each}_age": {"$divide": [{"$subtract": ["$$NOW", f"${each}"]}, 1000]} for each in times}
        return self.ask(lambda base: list(base[name].aggregate([{"$match": wanted}, {"$addFields": ages}])))

    def close(self) -> None:
        """Let go."""
        self.outage.close()
        self._client.close()

    def _asked(self, operation: Callable[[Database[dict[str, Any]]], T], base: Database[dict[str, Any]]) -> T:
        return self.outage.outlast(lambda: self._asked_once(operation, base))

    def _asked_once(self, operation: Callable[[Database[dict[str, Any]]], T], base: Database[dict[str, Any]]) -> T:
        """Raises StoreUnreachableError where it may be tried again."""
        from pymongo.errors import AutoReconnect, InvalidOperation, OperationFailure, WriteConcernError

        try:
            return operation(base)
        except AutoReconnect as error:  # also where no server is found
            raise self._unreachable(error) from error
        except InvalidOperation as error:
            if not self.outage.is_closing:
                raise
            raise self._unreachable(error) from error
        except OperationFailure as error:
            if error.code in _GOES_DOWN:
                raise self._unreachable(error) from error
            if error.code in _NOT_NOW:
                raise self._unreachable(error, CANNOT_WRITE) from error
            if error.code == _NO_ROOM or isinstance(error, WriteConcernError):
                raise StoreDownError(**self._screen(error, CANNOT_WRITE)) from error
            if error.code in (13, 18, 8000):  # of who may not, or is not who it says
                raise StoreDownError(
                    "The store's server refuses this user.",
                    where=self.shown,
                    expected="AJET_STORE_USER and AJET_STORE_PASSWORD of one that may read and write there",
                ) from error
            raise

    def _unreachable(self, error: Exception, what: str = "The store's server does not answer") -> StoreUnreachableError:
        return StoreUnreachableError(**self._screen(error, what))

    def _screen(self, error: Exception, what: str) -> dict[str, str]:
        return {
            "what": f"{what}: {re.split(r' [(]configured|, Timeout', str(error))[0]}.",
            "where": self.shown,
            "expected": "a server of MongoDB that this machine reaches",
            "do": "Start it, or say where it is in store.uri; then start the same command again.",
        }
