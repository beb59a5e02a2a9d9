"""The driver of stores at `mongodb://` and `mongodb+srv://`."""

from __future__ import annotations

from pathlib import Path

from ajet.schema.errors import Finding, UserError
from ajet.store import Address, StoreOptions
from ajet.store.opening import StoreLeftovers, credentials
from ajet_mongo.leftovers import MongoLeftovers
from ajet_mongo.mongo_store import MongoStore
from ajet_mongo.reading import MongoReading, check_database
from ajet_mongo.survey import survey_server


class MongoDriver:
    """Open, survey and clean MongoDB stores (`ajet.store.StoreDriver`) for ajet's commands."""

    form = "mongodb://HOST:PORT/DATABASE"
    default = "mongodb://127.0.0.1:27017"

    def open(self, address: Address, opener: StoreOptions) -> MongoStore:
        """Open the store as a member of a run."""
        return MongoStore(address.uri, address.database, opener, login=credentials())

    def check(self, address: Address, *, made: Path | None = None) -> None:
        check_database(address.uri, address.database, login=credentials())

    def read(self, address: Address) -> MongoReading:
        """Open the store read-only."""
        return MongoReading(address.uri, address.database, credentials())

    def survey(self, address: Address) -> list[Finding]:
        try:
            return survey_server(address.uri, address.database, credentials())
        except UserError as error:
            return [Finding("server", "problem", error.what, error.do or error.expected)]

    def find_leftovers(self, address: Address, *, remove: bool = False) -> StoreLeftovers:
        there = MongoLeftovers(address.uri, address.database, credentials())
        try:
            unnamed, without = there.find_leftovers()
            left = StoreLeftovers(len(unnamed) + len(without), there.size([*unnamed, *without]))
            if remove:
                there.remove(unnamed, without)
            return left
        finally:
            there.close()
