"""Connects to a MongoDB server, with one client, three write concerns, and retries during an outage.

Invariants: after a broken connection an operation is retried until `PATIENCE` is over, so every operation must tolerate
a repetition. Refused operations are not retried. A durable write returns once it is in the journal of the server, or of
most of a replica set, with all earlier writes.
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
"""Time limit for retries, in seconds."""
ANSWER_MS = 30_000
"""Milliseconds for the answer of a running server."""
_NO_ROOM = 14031
"""Code: the disk is full."""
_NOT_NOW = (50, 64, 100, 262)
"""Codes: timeout, or too few members. A replica set may recover members."""
_GOES_DOWN = (91, 189, 10058, 10107, 11600, 11602, 13435, 13436)
"""Codes of a server that shuts down or stops being the primary while it waits for the journal or other members."""
DUPLICATE = 11000
"""Error code: the document already exists."""
CANNOT_WRITE = "The MongoDB server of the store cannot write"
T = TypeVar("T")


class MongoConnection:
    """The connection to a single database."""

    def __init__(
        self,
        uri: str,
        database: str,
        login: tuple[str, str] | None,
        later: float | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        """Create the client without contacting the server.

        Args:
            login: User and password, or None.
            patience: Seconds that an operation is retried until the first contact.
            later: Seconds that an operation is retried after the first contact; the store sets `outage.patience` to
                this value then. Here it only limits the wait for one answer. None: the same as `patience`.

        Raises:
            MissingExtraError: pymongo is not installed.
            StoreDownError: the address cannot be used.
        """
        try:
            from pymongo import MongoClient, ReadPreference, WriteConcern
            from pymongo.errors import PyMongoError
        except ImportError as error:
            raise MissingExtraError("pymongo", "mongo", needed_for="A store in MongoDB") from error
        self.shown = f"{replace_secret_shapes(uri.rstrip('/'), '…')}/{database}"
        self.outage = Outage(self.shown, patience)
        # An answer must not take longer than an operation is retried. At least 0.1 s, since 0 means no limit.
        answer_ms = int(min(ANSWER_MS, 1000 * max(patience if later is None else later, 0.1)))
        options: dict[str, Any] = {"appname": "ajet", "connectTimeoutMS": 5000, "socketTimeoutMS": answer_ms}
        options["serverSelectionTimeoutMS"] = int(1000 * min(patience, 5.0))
        options |= {"username": login[0], "password": login[1]} if login else {}
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(uri, **options)
        except PyMongoError as error:
            raise StoreDownError(f"The store's address cannot be used: {error}", where=self.shown) from error
        # Reads go to the primary: on a lagging secondary a position could name documents that have not arrived yet.
        base = self._client.get_database(database, read_preference=ReadPreference.PRIMARY)
        # w=1 overrides the write concern of the address, because w=0 reports no errors.
        self.quick = base.with_options(write_concern=WriteConcern(w=1))
        self._unacknowledged = base.with_options(write_concern=WriteConcern(w=0))
        self.durable = base.with_options(write_concern=WriteConcern(w="majority", j=True, wtimeout=answer_ms))

    def run_durable(self, operation: Callable[[Database[dict[str, Any]]], T]) -> T:
        """Run an operation whose writes are in the journal when it returns.

        Raises:
            StoreDownError: the server stays unreachable or cannot write.
            PyMongoError: the server refuses a document.
        """
        return self.run_operation(operation, self.durable)

    def run_quick(self, operation: Callable[[Database[dict[str, Any]]], T]) -> T:
        """Run an operation without waiting for the journal. The next durable write makes its writes durable, too."""
        return self.run_operation(operation, self.quick)

    def send_unacknowledged(self, operation: Callable[[Database[dict[str, Any]]], None]) -> None:
        """Send writes without waiting for an answer.

        A refusal is not reported, so the caller must check later that the documents exist. Sending is retried during an
        outage.
        """
        self.run_operation(operation, self._unacknowledged)

    def find(
        self,
        name: str,
        wanted: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
        *,
        order: int = 1,
        limit: int = 0,
    ) -> list[dict[str, Any]]:
        """Find documents of a collection, sorted by `_id`.

        Args:
            name: name of the collection.
            wanted: filter.
            fields: the fields to return, or None for all.
            order: 1 for ascending, -1 for descending.
            limit: maximum number of documents, 0 for no limit.
        """
        return self.run_durable(lambda base: list(base[name].find(wanted, fields, limit=limit).sort("_id", order)))

    def update(self, name: str, wanted: Mapping[str, Any], change: Any) -> int:
        """Update all documents of a collection that match a filter.

        Returns:
            The number of matching documents. It may be lower if an answer was lost and the update repeated.
        """
        return self.run_durable(lambda base: base[name].update_many(wanted, change).matched_count)

    def find_with_ages(self, name: str, wanted: Mapping[str, Any], *times: str) -> list[dict[str, Any]]:
        """Find documents of a collection, each with the age of some of its times.

        Args:
            name: name of the collection.
            wanted: filter.
            times: names of date fields. A document gets a field `TIME_age` for each: seconds by the server's clock.
        """
        ages = {f"{time}_age": {"$divide": [{"$subtract": ["$$NOW", f"${time}"]}, 1000]} for time in times}
        return self.run_durable(lambda base: list(base[name].aggregate([{"$match": wanted}, {"$addFields": ages}])))

    def close(self) -> None:
        """Close the client. Operations of other threads that wait for the server fail."""
        self.outage.close()
        self._client.close()

    def run_operation(self, operation: Callable[[Database[dict[str, Any]]], T], base: Database[dict[str, Any]]) -> T:
        """Run an operation and repeat it during an outage of the server, until the patience is over."""
        return self.outage.outlast(lambda: self._try_operation(operation, base))

    def _try_operation(self, operation: Callable[[Database[dict[str, Any]]], T], base: Database[dict[str, Any]]) -> T:
        """Run an operation once. Raises StoreUnreachableError if a retry may succeed."""
        from pymongo.errors import AutoReconnect, InvalidOperation, OperationFailure, WriteConcernError

        try:
            return operation(base)
        except AutoReconnect as error:  # pymongo also raises this if it finds no server
            raise self._make_unreachable_error(error) from error
        except InvalidOperation as error:  # pymongo raises it for a closed client, and for errors in our calls
            if not self.outage.is_closing:
                raise
            raise self._make_unreachable_error(error) from error
        except OperationFailure as error:
            if error.code in _GOES_DOWN:
                raise self._make_unreachable_error(error) from error
            if error.code in _NOT_NOW:
                raise self._make_unreachable_error(error, CANNOT_WRITE) from error
            if error.code == _NO_ROOM or isinstance(error, WriteConcernError):
                raise StoreDownError(**self._describe_failure(error, CANNOT_WRITE)) from error
            if error.code in (13, 18, 8000):  # the user lacks a permission, or the login failed
                raise StoreDownError(
                    "The MongoDB server of the store refuses this user.",
                    where=self.shown,
                    expected="AJET_STORE_USER and AJET_STORE_PASSWORD of a user that may read and write the database",
                ) from error
            raise

    def _make_unreachable_error(
        self, error: Exception, what: str = "The MongoDB server of the store does not answer"
    ) -> StoreUnreachableError:
        """Build the error after which the operation is retried, and which the user sees if no retry succeeds."""
        return StoreUnreachableError(**self._describe_failure(error, what))

    def _describe_failure(self, error: Exception, what: str) -> dict[str, str]:
        """Return the texts of an error screen.

        Args:
            error: pymongo's error, shown without its long description of timeouts and servers.
            what: what happened, as a sentence without a full stop.
        """
        return {
            "what": f"{what}: {re.split(r' [(]configured|, Timeout', str(error))[0]}.",
            "where": self.shown,
            "expected": "a MongoDB server that this machine can reach",
            "do": "Start the server, or correct store.uri; then start the same command again.",
        }
