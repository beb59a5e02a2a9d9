"""Over how many of how many a mean reward is, and what became of the others: "over 228 of 256; 28 environment".

Invariant: the episodes that are named and those that are scored are all episodes of the play.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ajet.schema.errors import Boundary

BOUNDARIES: tuple[str, ...] = get_args(Boundary)


def numbers_of(prefix: str) -> tuple[str, ...]:
    """The metrics that `over` reads."""
    counts = ("episodes", "scored", "failed", "aborted", "no_score", *(f"failed/{name}" for name in BOUNDARIES))
    return tuple(f"{prefix}/{name}" for name in counts)


def over(numbers: Mapping[str, Any], prefix: str) -> str:
    """The numbers that a mean is over, in words; "" where the row does not say."""
    scored, episodes = numbers.get(f"{prefix}/scored"), numbers.get(f"{prefix}/episodes")
    if scored is None or episodes is None:
        return ""
    lost = unscored(numbers, prefix)
    return f"over {scored:.0f} of {episodes:.0f}" + (f"; {lost}" if lost else "")


def unscored(numbers: Mapping[str, Any], prefix: str) -> str:
    """The episodes without a reward, by whose side they failed on; "" where there are none."""
    count = {name: int(numbers.get(f"{prefix}/{name}") or 0) for name in ("episodes", "scored", "failed", "aborted")}
    undecided = int(numbers.get(f"{prefix}/no_score") or 0)
    by = {name: int(numbers.get(f"{prefix}/failed/{name}") or 0) for name in BOUNDARIES}
    # a failure of the policy may have a reward (rollout.policy_failure_reward): it is among the scored
    by["agent"] -= max(0, count["scored"] - (count["episodes"] - count["failed"] - count["aborted"] - undecided))
    parts = [f"{number} {name}" for name, number in by.items() if number > 0]
    parts += [f"{undecided} no score"] if undecided else []
    parts += [f"{count['aborted']} aborted"] if count["aborted"] else []
    return ", ".join(parts)
