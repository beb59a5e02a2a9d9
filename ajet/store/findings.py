"""Findings about a store, for `ajet doctor --store`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ajet.schema.errors import Finding

SILENT = 300.0
"""Seconds without a heartbeat after which a member is reported as silent."""


def report_contents(states: Mapping[str, int], ends: int, size: int) -> Finding:
    """Report positions and size. `states` maps a state to its number of positions, `size` is in bytes."""
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items())) or "none yet"
    return Finding("positions", "ok", f"{counts}; {ends:,} episodes, {size / 1e6:,.1f} MB")


def report_dead_letters(reasons: Iterable[tuple[int, str]]) -> list[Finding]:
    """Report dead positions. `reasons`: (order, last reason) pairs."""
    dead = list(reasons)
    if not dead:
        return []
    shown = "; ".join(f"position {order}: {reason}" for order, reason in dead[:3])
    more = f"; and {len(dead) - 3} more" if len(dead) > 3 else ""
    return [Finding("dead letters", "warning", f"{len(dead)}: {shown}{more}", "they are not played any more")]


def report_member(role: str, name: str, age: float, leases: int) -> Finding:
    """Report one member of the store."""
    holds = f"{leases} lease{'s' * (leases != 1)}"
    silent = "silent: its positions go to others when its leases end" if age > SILENT else ""
    return Finding(f"{role} {name}", "warning" if silent else "ok", f"last heartbeat {age:.0f} s ago, {holds}", silent)


def report_policy(policy: Mapping[str, Any], age: float) -> Finding:
    """Report the policy announced for samplers."""
    return Finding("policy", "ok", f"step {policy['step']}, {age:.0f} s ago, weights at {policy['weights']}")


def report_schema_version(found: int, known: int) -> Finding:
    """Compare the store's schema version with this ajet's."""
    if found == known:
        return Finding("schema", "ok", f"version {found}")
    do = "update ajet here" if found > known else "name an empty store, or use the ajet that made this one"
    return Finding("schema", "problem", f"version {found}; this ajet knows {known}", do)
