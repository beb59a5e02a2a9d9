"""Filters and updates of position documents, in MongoDB's language.

Invariant: every change of a position is a single update of its document, conditioned on state and fence. Times are the
server's (`$$NOW`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.store.contract import Lease
from ajet.store.shared import EXPIRED

WAITING, RUNNING, CLOSED, OVER, DEAD = "waiting", "running", "completed", "over", "dead"
MADE, FREE = "made", "free"
"""States of positions never leased: made, and free to lease."""
NEVER_HAD = (MADE, FREE)
Document = dict[str, Any]
Update = list[Mapping[str, Any]]
_NOTHING: Document = {"whole": False, "reasons": [], "ends": [], "uses": [], "scores": [], "num_samples": 0, "fence": 0}


def match_lease(lease: Lease) -> Document:
    """Match the position of a valid lease."""
    return {"_id": lease.order, "status": RUNNING, "fence": lease.fence}


def build_deadline(seconds: float) -> Document:
    """Return the fields of a lease of `seconds` from now on."""
    return {"until": {"$add": ["$$NOW", int(1000 * seconds)]}, "seconds": seconds}


def build_claim(holder: str, trainer: int, seconds: float, mark: str) -> Update:
    """Return the update that leases a free or new position. `mark`: identifies the claim."""
    there = {name: {"$ifNull": [f"${name}", value]} for name, value in _NOTHING.items()}
    mine = {
        "status": RUNNING,
        "holder": {"$literal": holder},
        "trainer": trainer,
        "mark": mark,
        "fence": {"$add": ["$fence", 1]},
        "num_samples": {"$add": ["$num_samples", 1]},
        "since": "$$NOW",
        **build_deadline(seconds),
    }
    return [{"$set": there}, {"$set": mine}]


def match_available(floor: int, below: int | None) -> Document:
    """Match waiting positions of the order, and free positions below `below`."""
    if below is None:
        return {"status": {"$in": [WAITING, FREE]}, "_id": {"$gte": floor}}
    fresh = {"status": FREE, "_id": {"$gte": floor, "$lt": below}}
    return {"$or": [{"status": WAITING, "_id": {"$gte": floor}}, fresh]}


def match_expired() -> Document:
    """Match samplers' leases past their deadline, or with a deadline too far ahead, after a clock was set back."""
    ahead = {"$add": ["$$NOW", {"$multiply": [2000, {"$max": ["$seconds", 1]}]}]}
    ended = {"$or": [{"$lt": ["$until", "$$NOW"]}, {"$gt": ["$until", ahead]}]}
    return {"status": RUNNING, "trainer": 0, "$expr": ended}


def match_earlier_trainers(latest: int) -> Document:
    """Match leases of earlier trainers."""
    return {"status": RUNNING, "trainer": {"$gt": 0, "$lt": latest}}


def record_failure(reason: str, most: int) -> Update:
    """Return the update after a failed attempt."""
    state = {"$cond": [{"$lt": [{"$size": "$reasons"}, most]}, WAITING, DEAD]}
    reasons = {"$concatArrays": ["$reasons", [{"$literal": reason}]]}
    return [{"$set": {"reasons": reasons}}, {"$set": {"status": state}}]


def mark_dead(reason: str) -> Update:
    """Return the update to withdraw a position."""
    reasons = {"$concatArrays": ["$reasons", [{"$literal": reason}]]}
    return [{"$set": {"reasons": reasons, "status": DEAD}}]


def match_record(order: int, record: str) -> Document:
    """Match an unfinished position with a reference to the record."""
    return {"_id": order, "status": {"$nin": [OVER, DEAD]}, "ends.record": record}


def record_expiry(most: int) -> Update:
    """Return the update after a holder's lease expired: a failed attempt, too."""
    return record_failure(EXPIRED, most)


def build_put(lease: Lease, ends: Sequence[Mapping[str, Any]], about: Mapping[str, Any], seconds: float) -> Update:
    """Return the update to add new episodes. Without a valid lease, the update has no effect."""
    mine = {"$and": [{"$eq": ["$status", RUNNING]}, {"$eq": ["$fence", lease.fence]}]}
    new = {
        "$filter": {
            "input": {"$literal": list(ends)}, "as": "end", "cond": {"$not": {"$in": ["$$end.uuid", "$ends.uuid"]}}
        }
    }  # fmt: skip
    task_fields = {name: {"$literal": value} for name, value in about.items()}
    grown = {"ends": {"$concatArrays": ["$ends", new]}, **build_deadline(seconds), **task_fields}
    changed = {name: {"$cond": [mine, value, f"${name}"]} for name, value in grown.items()}
    return [{"$set": changed}, {"$set": {"scores": {"$cond": [mine, "$ends.score", "$scores"]}}}]


def build_use(of: str, step: int, reason: str | None) -> Update:
    """Return the update to end a position with the commit `of`."""
    one = {"of": of, "step": step, "reason": reason}
    return [{"$set": {"was": "$status", "status": OVER, "uses": {"$concatArrays": ["$uses", [{"$literal": one}]]}}}]


def build_reuse(of: str, step: int) -> Update:
    """Return the update for a use that leaves the position closed for a later step."""
    one = {"of": of, "step": step, "reason": None, "again": True}
    return [{"$set": {"was": "$status", "uses": {"$concatArrays": ["$uses", [{"$literal": one}]]}}}]


def match_use(of: str, step: int) -> Document:
    """Match positions used by the step in the commit."""
    return {"uses": {"$elemMatch": {"of": of, "step": step}}}


def undo_use(of: str, step: int) -> Update:
    """Return the update to restore the state before the use."""
    this = {"$and": [{"$eq": ["$$use.of", of]}, {"$eq": ["$$use.step", step]}]}
    rest = {"$filter": {"input": "$uses", "as": "use", "cond": {"$not": this}}}
    return [{"$set": {"status": "$was", "uses": rest}}]


def reopen_position() -> Update:
    """Return the update of a position with an invalid use."""
    return [{"$set": {"status": {"$cond": ["$whole", CLOSED, WAITING]}}}]


def match_last_use(names: Iterable[str]) -> Document:
    """Match a final use by any of the commits."""
    return {"$elemMatch": {"of": {"$in": list(names)}, "again": {"$ne": True}}}
