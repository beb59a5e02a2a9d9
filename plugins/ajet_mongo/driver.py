"""The driver of stores at `mongodb://` and `mongodb+srv://`."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.record.secrets import SHAPES_ONLY
from ajet.schema.errors import Finding, UserError
from ajet.store import Address, StoreOptions, findings
from ajet.store.digest import AlteredEpisodeError
from ajet.store.opening import StoreLeftovers, credentials, missing_store_error
from ajet.store.reader import State, StoredPosition, build_stored_position
from ajet.store.shared import Policy
from ajet_mongo.changes import CLOSED, DEAD, NEVER_HAD, OVER, RUNNING, WAITING
from ajet_mongo.connection import MongoConnection
from ajet_mongo.documents import Document
from ajet_mongo.ledger import list_commits
from ajet_mongo.mongo_store import MongoStore
from ajet_mongo.records import EpisodeRecords, list_steps
from ajet_mongo.schema import (
    BLOB,
    CALL,
    DATA,
    INDEXES,
    LEDGER,
    MEMBERS,
    RECORD,
    TASK,
    THE_LEDGER,
    THE_SETTINGS,
    VERSION,
    require_version,
)

if TYPE_CHECKING:
    from pymongo.database import Database


class MongoDriver:
    """Opens, checks, reads and cleans MongoDB stores for ajet's commands (implements `ajet.store.StoreDriver`)."""

    form = "mongodb://HOST:PORT/DATABASE"
    default = "mongodb://127.0.0.1:27017"

    def open(self, address: Address, opener: StoreOptions) -> MongoStore:
        """Open the store as a process of a run.

        Args:
            opener: the role of the process and its settings for leases.
        """
        return MongoStore(address.uri, address.database, opener, login=credentials())

    def check(self, address: Address, *, made: Path | None = None) -> None:
        """Raise UserError if the database cannot be used as a store. Creates nothing.

        Args:
            made: only stores in files use this.
        """
        check_database(address.uri, address.database, login=credentials())

    def read(self, address: Address) -> MongoReading:
        """Open the store read-only. Raises UserError if there is no store at the address."""
        return MongoReading(address.uri, address.database, credentials())

    def survey(self, address: Address) -> list[Finding]:
        """Check server and store for `ajet doctor`. An unreachable server is a finding, not an error."""
        try:
            return survey_server(address.uri, address.database, credentials())
        except UserError as error:
            return [Finding("server", "problem", error.what, error.do or error.expected)]

    def find_leftovers(self, address: Address, *, remove: bool = False) -> StoreLeftovers:
        """Return number and size of the documents that killed processes have left in the database.

        Args:
            remove: True to remove them, too.
        """
        database = MongoLeftovers(address.uri, address.database, credentials())
        try:
            unreferenced, missing = database.find_leftovers()
            leftovers = StoreLeftovers(len(unreferenced) + len(missing), database.size([*unreferenced, *missing]))
            if remove:
                database.remove(unreferenced, missing)
            return leftovers
        finally:
            database.close()


# Unreferenced documents in a database, left by killed clients, for `ajet gc`.
# Invariant: a document with a present or later reference from a position is never removed. A record without a
# position is unreferenced once its lease is lost. Parts of a missing record were written before a killed server
# lost the record, or belong to a put in progress that would write the record a second time. Before removing such
# parts, a placeholder record of the same name, without a lease, is inserted, so no position can refer to the parts.
LEFTOVERS_PATIENCE = 5.0
"""Seconds to wait for the server's answer."""


class MongoLeftovers:
    """Finds and removes the documents of one database that no position refers to.

    Every method raises UserError if the server is unreachable.
    """

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        """Create the connection. `login` is user and password, or None."""
        self.link = MongoConnection(uri, database, login, patience=LEFTOVERS_PATIENCE)
        self._records = EpisodeRecords(self.link, SHAPES_ONLY)

    def close(self) -> None:
        """Close the connection to the server."""
        self.link.close()

    def find_leftovers(self) -> tuple[list[str], list[str]]:
        """Find documents that killed clients have left.

        Returns:
            Names of records (main documents of episodes) that no task position refers to, and names of missing records
            whose parts (other documents) exist. Both lists are empty for a database of another version.
        """
        if not self.link.find(LEDGER, {**THE_LEDGER, "version": VERSION}, {"_id": 1}):
            return [], []
        # Group the parts by the name of their record, and leave the names for which no record exists.
        record_lookup: dict[str, Any] = {"from": RECORD, "localField": "_id", "foreignField": "_id", "as": "at"}
        pipeline: list[dict[str, Any]] = [
            {"$group": {"_id": "$record"}},
            {"$match": {"_id": {"$type": "string"}}},
            {"$lookup": {**record_lookup, "pipeline": [{"$project": {"_id": 1}}]}},
            {"$match": {"at": []}},
        ]
        missing_records = {
            row["_id"]
            for name in (CALL, DATA, BLOB)
            for row in self.link.run_durable(lambda base, name=name: list(base[name].aggregate(pipeline)))  # type: ignore[misc]
        }
        return self._records.find_unnamed(), sorted(missing_records)

    def size(self, names: Sequence[str]) -> int:
        """Return the total size in bytes of records (main documents of episodes) and their other documents."""

        def sum_bytes(base: Database[dict[str, Any]], name: str) -> int:
            """Return the size of the documents in one collection."""
            match_names = {"_id" if name == RECORD else "record": {"$in": list(names)}}
            sum_sizes: dict[str, Any] = {"$group": {"_id": None, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}}
            stages: list[dict[str, Any]] = [{"$match": match_names}, sum_sizes]
            return sum(int(row["size"]) for row in base[name].aggregate(stages))

        return self.link.run_durable(lambda base: sum(sum_bytes(base, name) for name in (RECORD, CALL, DATA, BLOB)))

    def remove(self, unnamed: Sequence[str], without: Sequence[str]) -> None:
        """Remove documents of episodes that killed clients have left.

        Args:
            unnamed: names of records (main documents of episodes) that no task position refers to.
            without: names of missing records whose parts (other documents) exist.
        """
        from pymongo.errors import DuplicateKeyError

        # A placeholder record without a lease keeps a position from referring to the parts while they are removed.
        for name in without:
            try:
                self.link.run_durable(lambda base, name=name: base[RECORD].insert_one({"_id": name}))  # type: ignore[misc]
            except DuplicateKeyError:  # a put wrote the record meanwhile, or our insertion's first answer was lost
                continue
            self._records.remove([name], fence=None)  # a record that a put inserts afterwards has a fence, and stays
        self._records.remove(unnamed)


SURVEY_PATIENCE = 2.0
FAR, SKEWED = 0.05, 5.0
"""Limits in seconds above which a round trip, or the difference of the clocks, is reported."""
OLDEST = (5, 0)
"""The oldest MongoDB version that has all operations used here."""


def survey_server(uri: str, database: str, login: tuple[str, str] | None) -> list[Finding]:
    """Check a server and the store in its database, for `ajet doctor`. Raises UserError if it does not answer."""
    link = MongoConnection(uri, database, login, patience=SURVEY_PATIENCE)
    try:
        return [*_survey_link(link), *link.run_durable(_survey_contents)]
    finally:
        link.close()


def _survey_link(link: MongoConnection) -> list[Finding]:
    """Return findings about the server: its version, replica set, round-trip time and clock."""
    hello = link.run_durable(lambda base: base.client.admin.command("hello"))
    version = link.run_durable(lambda base: base.client.admin.command("buildInfo"))["version"]
    members = len(hello.get("hosts", ())) or 1
    numbers = tuple(int(number) for number in version.split(".")[:2])
    version_problem = "the server must have version 5.0 or later" if numbers < OLDEST else ""
    report = [
        Finding("server", "problem" if version_problem else "ok", f"{link.shown}, MongoDB {version}", version_problem)
    ]
    if members == 1:
        no_replica = "one server without a replica set: the data exist on its disk only"
        report.append(Finding("replicas", "note", no_replica, "back up the data, or use a replica set"))
    else:
        report.append(Finding("replicas", "ok", f"{members} members; a write is complete when most of them have it"))
    round_trips, skew = [], 0.0  # in seconds
    for _ in range(5):
        started, sent_at = time.perf_counter(), time.time()
        answer = link.run_durable(lambda base: base.client.admin.command("hello"))
        round_trips.append(time.perf_counter() - started)
        # The server read its clock in the middle of the round trip.
        skew = answer["localTime"].replace(tzinfo=UTC).timestamp() - sent_at - round_trips[-1] / 2
    delay = statistics.median(round_trips)
    latency_problem = "each task takes several round trips" if delay > FAR else ""
    report.append(
        Finding(
            "latency", "warning" if latency_problem else "ok", f"{1000 * delay:.1f} ms per round trip", latency_problem
        )
    )
    clock_note = "leases use the server's clock; times in the record use this machine's" if abs(skew) > SKEWED else ""
    report.append(
        Finding(
            "clock",
            "note" if clock_note else "ok",
            f"the server's clock differs by {skew:+.1f} s from this machine's",
            clock_note,
        )
    )
    return report


def _survey_contents(base: Database[dict[str, Any]]) -> list[Finding]:
    """Return findings about a store's database.

    These are its schema version, missing indexes, contents, tasks given up, the trainer's policy, and the trainers and
    samplers that use it.
    """
    ledger = base[LEDGER].find_one(THE_LEDGER)
    if ledger is None:
        return [
            Finding(
                "store", "note", "the database does not exist yet", "the first process that opens the store creates it"
            )
        ]
    report = [findings.report_schema_version(ledger["version"], VERSION)]
    missing = [
        f"{name} {dict(keys)}"
        for name, indexes in INDEXES.items()
        for keys in indexes
        if keys not in [list(index["key"]) for index in base[name].index_information().values()]
    ]
    if missing:
        text = f"lacking: {', '.join(missing)}"
        report.append(
            Finding(
                "indexes",
                "warning",
                text,
                "an index is missing, so each lease reads all positions; create the indexes again",
            )
        )
    else:
        report.append(Finding("indexes", "ok", f"all {sum(map(len, INDEXES.values()))} indexes exist"))
    # Positions that were never leased were only created in advance.
    count_leased: list[dict[str, Any]] = [
        {"$match": {"status": {"$nin": list(NEVER_HAD)}}},
        {"$sortByCount": "$status"},
    ]
    states = {row["_id"]: row["count"] for row in base[TASK].aggregate(count_leased)}
    size = int(base.command("dbStats")["dataSize"])
    report.append(findings.report_contents(states, base[RECORD].count_documents({}, hint="_id_"), size))
    dead = base[TASK].find({"status": DEAD}, {"reasons": 1}).sort("_id")
    report += findings.report_dead_letters((position["_id"], position["reasons"][-1]) for position in dead)
    now = base.client.admin.command("hello")["localTime"]
    if "policy" in ledger:
        report.append(findings.report_policy(ledger["policy"], _seconds_since(ledger["policy_at"], now)))
    stages: list[dict[str, Any]] = [{"$match": {"status": RUNNING}}, {"$sortByCount": "$holder"}]
    lease_counts = {row["_id"]: row["count"] for row in base[TASK].aggregate(stages)}
    for member in base[MEMBERS].find().sort([("role", -1), ("_id", 1)]):
        report.append(
            findings.report_member(
                member["role"], member["_id"], _seconds_since(member["seen"], now), lease_counts.get(member["_id"], 0)
            )
        )
    return report


def _seconds_since(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()


# Reads a store in MongoDB without changing it.
# A position is a task's place in the training order. Invariant: as in `ajet.store.reader`. A position with missing
# documents is read again, since a writer may have released or replayed the position meanwhile. Only documents that
# the position still refers to count as changed.
READ_PATIENCE = 5.0
"""Seconds to wait for the server's answer."""
STATES: dict[str, State] = {WAITING: "waiting", RUNNING: "leased", CLOSED: "closed", OVER: "over", DEAD: "dead"}


class MongoReading:
    """Reads a store in MongoDB without changing it. Implements `ajet.store.reader.StoreReader`."""

    def __init__(self, uri: str, database: str, login: tuple[str, str] | None) -> None:
        """Connect, and read the run's id, its settings and the valid commits (sets of uses between checkpoints).

        Args:
            login: user and password, or None.

        Raises:
            UserError: the server is unreachable, or the database has no store of this version.
        """
        self._link = MongoConnection(uri, database, login, patience=READ_PATIENCE)
        self._records = EpisodeRecords(self._link, SHAPES_ONLY)
        try:
            ledger = self._read_ledger()
            self.run: str = ledger["run"] or ""
            settings = self._link.find(LEDGER, THE_SETTINGS)
            self.settings: str = settings[0]["text"] if settings else ""
            self._valid_commits = {*list_commits(self._link, ledger["head"]), ledger["open"]}
        except BaseException:
            self._link.close()
            raise

    def close(self) -> None:
        """Close the connection to the server."""
        self._link.close()

    def announced(self) -> Policy | None:
        """Return the policy that the trainer announced last to samplers, or None before the first."""
        ledger = self._read_ledger()
        return Policy(**ledger["policy"]) if "policy" in ledger else None

    def begun(self) -> int:
        """Return the number of positions of the training order that were leased at least once."""
        leased = {"_id": {"$gte": 0}, "status": {"$nin": list(NEVER_HAD)}}
        # Positions are leased in order, from 0.
        last_leased = self._link.find(TASK, leased, {"_id": 1}, order=-1, limit=1)
        return int(last_leased[0]["_id"]) + 1 if last_leased else int(self._read_ledger()["floor"])

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """Return the positions (places in the training order) of tasks that have episodes, in ascending order.

        Args:
            beginning: only positions with an episode whose uuid begins so.
            steps: only positions that one of these training steps used. Empty: all.
        """
        query: dict[str, Any] = {"ends.0": {"$exists": True}}
        if beginning:
            query["ends.uuid"] = {"$regex": f"^{re.escape(beginning)}"}
        if steps:
            query["uses.step"] = {"$in": list(steps)}
        tasks = self._link.find(TASK, query, {"_id": 1, "uses": 1})
        # The query also finds uses that were undone since they belong to no valid commit.
        return [task["_id"] for task in tasks if not steps or {*list_steps(task, self._valid_commits)} & {*steps}]

    def position(self, order: int) -> StoredPosition | None:
        """Read a position with its episodes, again if a writer replaces the episodes meanwhile.

        Args:
            order: number of the position, a task's place in the training order.

        Returns:
            None if the position has no episodes, or was removed meanwhile.
        """
        document = self._find_position(order)
        while document is not None:
            episodes = list(self._records.iterate_episodes(document))
            reread = self._find_position(order)
            has_altered = any(isinstance(episode, AlteredEpisodeError) for episode in episodes)
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
        """Return the document of a task position, or None if it does not exist or has no episodes."""
        tasks = self._link.find(TASK, {"_id": order, "ends.0": {"$exists": True}})
        return tasks[0] if tasks else None

    def _read_ledger(self) -> Document:
        """Return the document with the state shared by all processes.

        Raises UserError if the database has no store, or one of another version.
        """
        ledgers = self._link.find(LEDGER, THE_LEDGER)
        if not ledgers:
            raise missing_store_error(self._link.shown)
        require_version(self._link.shown, ledgers[0])
        return ledgers[0]


def check_database(uri: str, database: str, login: tuple[str, str] | None) -> None:
    """Raise UserError if the server cannot be reached or the database has a store of another version.

    A database without a store passes: the first process that opens it creates the store.
    """
    link = MongoConnection(uri, database, login)
    try:
        ledgers = link.find(LEDGER, THE_LEDGER)
        if ledgers:
            require_version(link.shown, ledgers[0])
    finally:
        link.close()
