"""What the trainer of a shared store shows those who watch its run: how many positions are where, how long the oldest
have been, and what each sampler does.

Invariant: ages are as of one look at the store, by its clock, and the look's own time goes with them; a number that
nobody told is absent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.store import Depths, Member

MOST = 32
"""Samplers that are shown, those that are silent the longest first; all of them are counted."""


def glance(
    depths: Depths, samplers: Sequence[Member], *, free: int, quarantined: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The store's state as `status.json` has it. `free`: positions that samplers may begin now; `samplers`: those that
    are at work; `quarantined`: groups that cannot be trained on, by kind."""
    counts = {"leased": depths.leased, "free": free, "closed": depths.closed, "again": depths.again}
    ages = {"lease": depths.oldest_lease, "waiting_group": depths.oldest_closed}
    refused = {"quarantined": sum(quarantined.values())} if quarantined else {}
    return {
        "depths": {"samplers": len(samplers), **counts, "dead": depths.dead, **refused},
        "oldest": {name: age for name, age in ages.items() if age is not None},
        "samplers": [_sampler(each) for each in sorted(samplers, key=lambda each: -each.age)[:MOST]],
        "looked": time.time(),
    }


def _sampler(member: Member) -> dict[str, Any]:
    told, found = member.told, {"name": member.name, "leases": member.leases, "age": member.age}
    if "version" in told:
        found["version"] = told["version"]
    if told.get("seconds") and "episodes" in told:
        found["episodes_per_second"] = told["episodes"] / told["seconds"]
    return found
