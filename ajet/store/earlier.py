"""What checkpoints and pending ends of earlier versions said, in today's words: known here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def todays_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Today's form of a checkpoint's `frontier`. That of a server held its reader's in `tasks` and the numbers of
    pending groups that it had used, which need not be kept, in `used`."""
    if "tasks" not in state or not isinstance(state["tasks"], Mapping | None):
        return dict(state)
    return {**(state["tasks"] or {}), "used": [[number, 0] for number in state.get("used", ())]}


def position_of(row: Mapping[str, Any]) -> int | None:
    """The position that a pending end was put for; None: of a task that was brought, which had none of its own."""
    order: int | None = row["position"] if "position" in row else row["source"]
    return order
