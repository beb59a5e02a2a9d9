"""Findings about a store, for `ajet doctor --store`. A position is a task's place in the training order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ajet.schema.errors import Finding

SILENT = 300.0
"""Seconds without a heartbeat after which a member is reported as silent."""


def report_contents(states: Mapping[str, int], ends: int, size: int) -> Finding:
    """Return the finding on the numbers of positions and episodes, and on the size of the store.

    Args:
        states: number of positions in each state.
        ends: number of stored episodes.
        size: bytes.
    """
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())) or "none yet"
    return Finding("positions", "ok", f"{counts}; {ends:,} episodes, {size / 1e6:,.1f} MB")


def report_dead_letters(reasons: Iterable[tuple[int, str]]) -> list[Finding]:
    """Return one finding per dead letter, a position that is leased no more.

    Args:
        reasons: (position, last reason) pairs.
    """
    dead_letters = list(reasons)
    if not dead_letters:
        return []
    examples = "; ".join(f"position {order}: {reason}" for order, reason in dead_letters[:3])
    remaining_text = f"; and {len(dead_letters) - 3} more" if len(dead_letters) > 3 else ""
    return [
        Finding(
            "dead letters",
            "warning",
            f"{len(dead_letters)}: {examples}{remaining_text}",
            "these tasks will not be run again; correct what the reason names",
        )
    ]


def report_member(role: str, name: str, age: float, leases: int) -> Finding:
    """Return the finding on one process registered in the store.

    Args:
        age: seconds since the last heartbeat.
        leases: number of positions that the process has leased.
    """
    holds = f"{leases} lease{'s' * (leases != 1)}"
    silent = "no heartbeat: its leased tasks go to other samplers when the leases end" if age > SILENT else ""
    return Finding(f"{role} {name}", "warning" if silent else "ok", f"last heartbeat {age:.0f} s ago, {holds}", silent)


def report_policy(policy: Mapping[str, Any], age: float) -> Finding:
    """Return the finding on the policy that the trainer announced for samplers.

    Args:
        policy: The fields of `Policy`.
        age: Seconds since the announcement.
    """
    return Finding(
        "policy", "ok", f"weights of step {policy['step']}, announced {age:.0f} s ago, in {policy['weights']}"
    )


def report_schema_version(found: int, known: int) -> Finding:
    """Return the finding on the store's schema version, compared with the version that this ajet knows."""
    if found == known:
        return Finding("schema", "ok", f"version {found}")
    do = (
        "update ajet here"
        if found > known
        else "set an empty store in store.uri or --from-store, or use the ajet version that created this store"
    )
    return Finding("schema", "problem", f"the store has schema version {found}, this ajet supports version {known}", do)
