"""What is asked of the documents of positions: filters and updates, as MongoDB has them.

Invariant: every change of a position is one update of its one document, which names the state and the fence that it
starts from; times are the server's (`$$NOW`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.store.contract import Lease
from ajet.store.shared import EXPIRED

WAITING, RUNNING, CLOSED, OVER, DEAD = "waiting", "running", "completed", "over", "dead"
MADE, FREE = "made", "free"
"""Of positions that nobody ever had: about to be given out, and to be given out."""
NEVER_HAD = (MADE, FREE)
Document = dict[str, Any]
Update = list[Mapping[str, Any]]
_NOTHING: Document = {"whole": False, "reasons": [], "ends": [], "uses": [], "scores": [], "num_samples": 0, "fence": 0}


def held(lease: Lease) -> Document:
    """The position of a lease that counts."""
    return {"_id": lease.order, "status": RUNNING, "fence": lease.fence}


def until(seconds: float) -> Document:
    """A lease of so long, from now on."""
    return {"until": {"$add": ["$$NOW", int(1000 * seconds)]}, "seconds": seconds}


def claim(holder: str, trainer: int, seconds: float, mark: str) -> Update:
    """The claim of a position that is nobody's, or of which there is no document yet. `mark`: by which the claim is
    known."""
    there = {name: {"$ifNull": [f"${name}", value]} for name, value in _NOTHING.items()}
    mine = {
        "status": RUNNING,
        "holder": {"$literal": holder},
        "trainer": trainer,
        "mark": mark,
        "fence": {"$add": ["$fence", 1]},
        "num_samples": {"$add": ["$num_samples", 1]},
        "since": "$$NOW",
        **until(seconds),
    }
    return [{"$set": there}, {"$set": mine}]


def to_be_had(floor: int, below: int | None) -> Document:
    """Positions of the order that wait, and of those that nobody ever had the ones before `below`."""
    if below is None:
        return {"status": {"$in": [WAITING, FREE]}, "_id": {"$gte": floor}}
    fresh = {"status": FREE, "_id": {"$gte": floor, "$lt": below}}
    return {"$or": [{"status": WAITING, "_id": {"$gte": floor}}, fresh]}


def fallen_silent() -> Document:
    """Leases of samplers whose time is over, or lies further ahead than a lease is long: the clock was set back."""
    ahead = {"$add": ["$$NOW", {"$multiply": [2000, {"$max": ["$seconds", 1]}]}]}
    ended = {"$or": [{"$lt": ["$until", "$$NOW"]}, {"$gt": ["$until", ahead]}]}
    return {"status": RUNNING, "trainer": 0, "$expr": ended}


def of_earlier_trainers(latest: int) -> Document:
    """Leases that ended with whoever trained."""
    return {"status": RUNNING, "trainer": {"$gt": 0, "$lt": latest}}


def failed(reason: str, most: int) -> Update:
    """The update of a position of which one more attempt has failed."""
    state = {"$cond": [{"$lt": [{"$size": "$reasons"}, most]}, WAITING, DEAD]}
    told = {"$concatArrays": ["$reasons", [{"$literal": reason}]]}
    return [{"$set": {"reasons": told}}, {"$set": {"status": state}}]


def set_aside(reason: str) -> Update:
    """Given to nobody any more."""
    told = {"$concatArrays": ["$reasons", [{"$literal": reason}]]}
    return [{"$set": {"reasons": told, "status": DEAD}}]


def naming(order: int, record: str) -> Document:
    """The position, while it waits for a step or a player and names this record."""
    return {"_id": order, "status": {"$nin": [OVER, DEAD]}, "ends.record": record}


def expired(most: int) -> Update:
    """The update of a position whose holder fell silent: a failed attempt, too."""
    return failed(EXPIRED, most)


def put(lease: Lease, ends: Sequence[Mapping[str, Any]], about: Mapping[str, Any], seconds: float) -> Update:
    """Ends that are new are known from now on, where the lease counts; else nothing changes."""
    mine = {"$and": [{"$eq": ["$status", RUNNING]}, {"$eq": ["$fence", lease.fence]}]}
    new = {
        "$filter": {
            "input": {"$literal": list(ends)}, "as": "end", "cond": {"$not": {"$in": ["$$end.uuid", "$ends.uuid"]}}
        }
    }  # fmt: skip
    told = {name: {"$literal": value} for name, value in about.items()}
    grown = {"ends": {"$concatArrays": ["$ends", new]}, **until(seconds), **told}
    changed = {name: {"$cond": [mine, value, f"${name}"]} for name, value in grown.items()}
    return [{"$set": changed}, {"$set": {"scores": {"$cond": [mine, "$ends.score", "$scores"]}}}]


def use(of: str, step: int, reason: str | None) -> Update:
    """Over, from the commit `of` on."""
    one = {"of": of, "step": step, "reason": reason}
    return [{"$set": {"was": "$status", "status": OVER, "uses": {"$concatArrays": ["$uses", [{"$literal": one}]]}}}]


def use_again(of: str, step: int) -> Update:
    """Used, and still closed, for a later step."""
    one = {"of": of, "step": step, "reason": None, "again": True}
    return [{"$set": {"was": "$status", "uses": {"$concatArrays": ["$uses", [{"$literal": one}]]}}}]


def used_by(of: str, step: int) -> Document:
    """Positions that this step has used, in this commit."""
    return {"uses": {"$elemMatch": {"of": of, "step": step}}}


def unused(of: str, step: int) -> Update:
    """Back, as it was before."""
    this = {"$and": [{"$eq": ["$$use.of", of]}, {"$eq": ["$$use.step", step]}]}
    rest = {"$filter": {"input": "$uses", "as": "use", "cond": {"$not": this}}}
    return [{"$set": {"status": "$was", "uses": rest}}]


def reopened() -> Update:
    """The update of a position whose use does not hold."""
    return [{"$set": {"status": {"$cond": ["$whole", CLOSED, WAITING]}}}]


def last_use(names: Iterable[str]) -> Document:
    """The query for a use by one of these commits that ended its position."""
    return {"$elemMatch": {"of": {"$in": list(names)}, "again": {"$ne": True}}}
