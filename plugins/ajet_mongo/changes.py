"""Builds MongoDB filters and updates for the documents of positions.

A position is a task's place in the training order, and a fence is the number of its latest lease. Functions `match_*`
return filters, and the others return updates. Invariant: every change of a position is a single update of its
document, conditioned on state and fence. Times are the server's (`$$NOW`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ajet.store.contract import Lease
from ajet.store.shared import EXPIRED

WAITING = "waiting"
"""No process leases the position, but one did before."""
RUNNING = "running"
"""A process leases the position."""
CLOSED = "completed"
"""The position's group is complete, and a training step may use it."""
OVER = "over"
"""No further step uses the position."""
DEAD = "dead"
"""The position is given up, because its attempts failed too often or an episode must not be trained on."""
MADE, FREE = "made", "free"
"""States of positions that were never leased: a MADE one cannot be leased yet, a FREE one can."""
NEVER_HAD = (MADE, FREE)
Document = dict[str, Any]
Update = list[Mapping[str, Any]]
_DEFAULTS: Document = {
    "whole": False,
    "reasons": [],
    "ends": [],
    "uses": [],
    "scores": [],
    "num_samples": 0,
    "fence": 0,
}


def match_lease(lease: Lease) -> Document:
    """Return the filter of a lease's task position, which does not match if another process has leased it since."""
    return {"_id": lease.order, "status": RUNNING, "fence": lease.fence}


def build_deadline(seconds: float) -> Document:
    """Return the fields of a task position whose lease ends `seconds` from now, by the server's clock."""
    return {"until": {"$add": ["$$NOW", int(1000 * seconds)]}, "seconds": seconds}  # MongoDB adds milliseconds


def build_claim(holder: str, trainer: int, seconds: float, mark: str) -> Update:
    """Return the update that leases a free or new task position.

    Args:
        holder: name of the process that leases the position.
        trainer: number of the process as a trainer, 0 for other processes.
        seconds: duration of the lease.
        mark: unique text of this claim, by which a claim with a lost answer is recognised.
    """
    # A new document has no fields yet, so missing ones are set first.
    with_defaults = {name: {"$ifNull": [f"${name}", value]} for name, value in _DEFAULTS.items()}
    lease_fields = {
        "status": RUNNING,
        "holder": {"$literal": holder},
        "trainer": trainer,
        "mark": mark,
        "fence": {"$add": ["$fence", 1]},
        "num_samples": {"$add": ["$num_samples", 1]},
        "since": "$$NOW",
        **build_deadline(seconds),
    }
    return [{"$set": with_defaults}, {"$set": lease_fields}]


def match_available(floor: int, below: int | None) -> Document:
    """Return the filter of task positions that can be leased.

    Args:
        floor: all lower positions are finished.
        below: this and higher positions are not leased for the first time. None: no limit.
    """
    if below is None:
        return {"status": {"$in": [WAITING, FREE]}, "_id": {"$gte": floor}}
    match_free = {"status": FREE, "_id": {"$gte": floor, "$lt": below}}
    return {"$or": [{"status": WAITING, "_id": {"$gte": floor}}, match_free]}


def match_expired() -> Document:
    """Return the filter of task positions whose lease by a process other than the trainer has expired.

    A deadline more than two lease times ahead counts as expired, too: the server's clock was set back.
    """
    latest_plausible = {"$add": ["$$NOW", {"$multiply": [2000, {"$max": ["$seconds", 1]}]}]}  # milliseconds
    is_expired = {"$or": [{"$lt": ["$until", "$$NOW"]}, {"$gt": ["$until", latest_plausible]}]}
    return {"status": RUNNING, "trainer": 0, "$expr": is_expired}


def match_earlier_trainers(latest: int) -> Document:
    """Return the filter of task positions leased by a trainer that a later one has replaced.

    Args:
        latest: number of the latest trainer.
    """
    return {"status": RUNNING, "trainer": {"$gt": 0, "$lt": latest}}


def record_failure(reason: str, limit: int) -> Update:
    """Return the update of a task position after a failed attempt.

    The position can be leased again, or is dead (leased no more) after `limit` failures.

    Args:
        reason: text of the failure.
        limit: number of failures after which a position is not leased any more.
    """
    state = {"$cond": [{"$lt": [{"$size": "$reasons"}, limit]}, WAITING, DEAD]}
    reasons = {"$concatArrays": ["$reasons", [{"$literal": reason}]]}
    return [{"$set": {"reasons": reasons}}, {"$set": {"status": state}}]  # the second stage sees the new reason


def mark_dead(reason: str) -> Update:
    """Return the update after which a task position is not leased any more ("dead letter"), with the reason."""
    reasons = {"$concatArrays": ["$reasons", [{"$literal": reason}]]}
    return [{"$set": {"reasons": reasons, "status": DEAD}}]


def match_record(order: int, record: str) -> Document:
    """Return the filter of an unfinished task position that refers to a record, the main document of an episode.

    Args:
        order: number of the position.
        record: name of the record.
    """
    return {"_id": order, "status": {"$nin": [OVER, DEAD]}, "ends.record": record}


def record_expiry(limit: int) -> Update:
    """Return the update of a task position after its lease expired, which counts as a failed attempt.

    Args:
        limit: number of failed attempts after which a position is not leased any more.
    """
    return record_failure(EXPIRED, limit)


def build_put(lease: Lease, ends: Sequence[Mapping[str, Any]], about: Mapping[str, Any], seconds: float) -> Update:
    """Return the update that adds references to episodes to a task position, if the lease is still valid.

    Args:
        ends: references to records with uuid and score; uuids that the position has already are left out.
        about: fields about the task.
        seconds: duration of the lease from now on.
    """
    # The conditions are part of the update, because it is applied by `$merge`, which has no filter.
    is_lease_valid = {"$and": [{"$eq": ["$status", RUNNING]}, {"$eq": ["$fence", lease.fence]}]}
    new_ends = {
        "$filter": {
            "input": {"$literal": list(ends)}, "as": "end", "cond": {"$not": {"$in": ["$$end.uuid", "$ends.uuid"]}}
        }
    }  # fmt: skip
    task_fields = {name: {"$literal": value} for name, value in about.items()}
    new_fields = {"ends": {"$concatArrays": ["$ends", new_ends]}, **build_deadline(seconds), **task_fields}
    changed = {name: {"$cond": [is_lease_valid, value, f"${name}"]} for name, value in new_fields.items()}
    return [{"$set": changed}, {"$set": {"scores": {"$cond": [is_lease_valid, "$ends.score", "$scores"]}}}]


def build_use(of: str, step: int, reason: str | None) -> Update:
    """Return the update that ends a task position because a step used or discarded its group.

    Args:
        of: name of the commit (set of uses between two checkpoints) with which the use becomes valid.
        step: training step.
        reason: why the group was discarded, or None if it was trained.
    """
    use = {"of": of, "step": step, "reason": reason}
    # `was` is the state that `undo_use` restores.
    return [{"$set": {"was": "$status", "status": OVER, "uses": {"$concatArrays": ["$uses", [{"$literal": use}]]}}}]


def build_reuse(of: str, step: int) -> Update:
    """Return the update of a task position whose group a step used and a later step may use again.

    Args:
        of: name of the commit (set of uses between two checkpoints) with which the use becomes valid.
        step: training step.
    """
    use = {"of": of, "step": step, "reason": None, "again": True}
    # The position stays closed. `was` is the state that `undo_use` restores.
    return [{"$set": {"was": "$status", "uses": {"$concatArrays": ["$uses", [{"$literal": use}]]}}}]


def match_use(of: str, step: int) -> Document:
    """Return the filter of task positions whose group a step used or discarded.

    Args:
        of: name of the commit (set of uses between two checkpoints) to which the use belongs.
        step: training step.
    """
    return {"uses": {"$elemMatch": {"of": of, "step": step}}}


def undo_use(of: str, step: int) -> Update:
    """Return the update that removes a step's use of a task position, and restores the position's state before it.

    Args:
        of: name of the commit (set of uses between two checkpoints) to which the use belongs.
        step: training step.
    """
    is_this_use = {"$and": [{"$eq": ["$$use.of", of]}, {"$eq": ["$$use.step", step]}]}
    other_uses = {"$filter": {"input": "$uses", "as": "use", "cond": {"$not": is_this_use}}}
    return [{"$set": {"status": "$was", "uses": other_uses}}]  # `was` was written with the use


def reopen_position() -> Update:
    """Return the update that reopens a task position whose last use by a training step was undone.

    The position is closed (has a complete group) if it ever was, else it waits for a lease.
    """
    return [{"$set": {"status": {"$cond": ["$whole", CLOSED, WAITING]}}}]


def match_last_use(names: Iterable[str]) -> Document:
    """Return the filter of a task position's field `uses` that requires a final use in one of some commits.

    After a final use no step uses the position's group any more.

    Args:
        names: names of the commits. A commit is the set of uses between two checkpoints.
    """
    return {"$elemMatch": {"of": {"$in": list(names)}, "again": {"$ne": True}}}
