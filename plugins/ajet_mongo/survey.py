"""Checks of a MongoDB server: version, latency, clock and content.

Invariant: only reads.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import Finding
from ajet.store import findings
from ajet_mongo.changes import DEAD, NEVER_HAD, RUNNING
from ajet_mongo.connection import MongoConnection
from ajet_mongo.schema import INDEXES, LEDGER, MEMBERS, RECORD, TASK, THE_LEDGER, VERSION

if TYPE_CHECKING:
    from pymongo.database import Database

PATIENCE = 2.0
FAR, SKEWED = 0.05, 5.0
"""Limits in seconds: a slow round trip, and a clock difference."""
OLDEST = (5, 0)
"""The oldest version with all operations in use."""


def survey_server(uri: str, database: str, login: tuple[str, str] | None) -> list[Finding]:
    """Survey a server. Raises UserError if it does not answer."""
    link = MongoConnection(uri, database, login, patience=PATIENCE)
    try:
        return [*_survey_link(link), *link.run_durable(_survey_contents)]
    finally:
        link.close()


def _survey_link(link: MongoConnection) -> list[Finding]:
    hello = link.run_durable(lambda base: base.client.admin.command("hello"))
    version = link.run_durable(lambda base: base.client.admin.command("buildInfo"))["version"]
    members = len(hello.get("hosts", ())) or 1
    numbers = tuple(int(part) for part in version.split(".")[:2])
    old = "the server must have version 5.0 or later" if numbers < OLDEST else ""
    shown = [Finding("server", "problem" if old else "ok", f"{link.shown}, MongoDB {version}", old)]
    if members == 1:
        alone = "one server without a replica set: the data exist on its disk only"
        shown.append(Finding("replicas", "note", alone, "back up the data, or use a replica set"))
    else:
        shown.append(Finding("replicas", "ok", f"{members} members; a write is complete when most of them have it"))
    took, skew = [], 0.0
    for _ in range(5):
        started, began = time.perf_counter(), time.time()
        answer = link.run_durable(lambda base: base.client.admin.command("hello"))
        took.append(time.perf_counter() - started)
        skew = answer["localTime"].replace(tzinfo=UTC).timestamp() - began - took[-1] / 2
    delay = statistics.median(took)
    far = "each task takes several round trips" if delay > FAR else ""
    shown.append(Finding("latency", "warning" if far else "ok", f"{1000 * delay:.1f} ms per round trip", far))
    skewed = "leases use the server's clock; times in the record use this machine's" if abs(skew) > SKEWED else ""
    shown.append(
        Finding(
            "clock",
            "note" if skewed else "ok",
            f"the server's clock differs by {skew:+.1f} s from this machine's",
            skewed,
        )
    )
    return shown


def _survey_contents(base: Database[dict[str, Any]]) -> list[Finding]:
    ledger = base[LEDGER].find_one(THE_LEDGER)
    if ledger is None:
        return [
            Finding(
                "store", "note", "the database does not exist yet", "the first process that opens the store creates it"
            )
        ]
    shown = [findings.report_schema_version(ledger["version"], VERSION)]
    missing = [
        f"{name} {dict(keys)}"
        for name, each in INDEXES.items()
        for keys in each
        if keys not in [list(index["key"]) for index in base[name].index_information().values()]
    ]
    if missing:
        text = f"lacking: {', '.join(missing)}"
        shown.append(
            Finding(
                "indexes",
                "warning",
                text,
                "an index is missing, so each lease reads all positions; create the indexes again",
            )
        )
    else:
        shown.append(Finding("indexes", "ok", f"all {sum(map(len, INDEXES.values()))} indexes exist"))
    had: list[dict[str, Any]] = [{"$match": {"status": {"$nin": list(NEVER_HAD)}}}, {"$sortByCount": "$status"}]
    states = {each["_id"]: each["count"] for each in base[TASK].aggregate(had)}
    size = int(base.command("dbStats")["dataSize"])
    shown.append(findings.report_contents(states, base[RECORD].count_documents({}, hint="_id_"), size))
    dead = base[TASK].find({"status": DEAD}, {"reasons": 1}).sort("_id")
    shown += findings.report_dead_letters((each["_id"], each["reasons"][-1]) for each in dead)
    now = base.client.admin.command("hello")["localTime"]
    if "policy" in ledger:
        shown.append(findings.report_policy(ledger["policy"], _seconds_since(ledger["policy_at"], now)))
    stages: list[dict[str, Any]] = [{"$match": {"status": RUNNING}}, {"$sortByCount": "$holder"}]
    holds = {each["_id"]: each["count"] for each in base[TASK].aggregate(stages)}
    for each in base[MEMBERS].find().sort([("role", -1), ("_id", 1)]):
        shown.append(
            findings.report_member(
                each["role"], each["_id"], _seconds_since(each["seen"], now), holds.get(each["_id"], 0)
            )
        )
    return shown


def _seconds_since(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()
