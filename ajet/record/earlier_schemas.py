"""Lines of earlier schemas as lines of today's.

Invariant: `todays` is the only place that knows what an earlier schema looked like; a line of today's comes back as it
is. What a line does not have reads as the default, here and in the codec.
"""

from __future__ import annotations

from typing import Any

from ajet.schema.episode import SCHEMA
from ajet.schema.errors import UserError

COUNTED_BY_CREDIT = ("zero_variance", "oversampled", "stale")
"""Schema 1: reasons, among those of an episode, that a step counted of tokens which stay in its timelines."""


def todays(row: dict[str, Any]) -> dict[str, Any]:
    """Raises KeyError and kin for what is no line. A newer one comes back as it is."""
    return _from_1(row) if row["schema"] < 2 else row


def readable(row: dict[str, Any]) -> dict[str, Any]:
    """The row for who needs all of it. Raises UserError for a schema newer than this ajet knows, too."""
    if row["schema"] > SCHEMA:
        raise UserError(
            f"This episode was recorded with schema {row['schema']}; this ajet reads up to {SCHEMA}.",
            where=f"episode {row.get('uuid', '?')}",
            do="update ajet",
        )
    return todays(row)


def _from_1(row: dict[str, Any]) -> dict[str, Any]:
    """Advantage and reasons of the step stood among the episode's own; what ajet said, among its metadata and the
    `extra` of its calls."""
    row, untrained, metadata = dict(row), dict(row["untrained"]), dict(row["metadata"])
    by_credit = {reason: untrained.pop(reason) for reason in COUNTED_BY_CREDIT if reason in untrained}
    advantage = row.pop("advantage")
    row["outcome"] = {
        "step": None if advantage is None else row["step"],
        "advantage": advantage,
        "untrained": by_credit,
        "discarded": next((reason for reason in ("oversampled", "stale") if reason in by_credit), None),
    }
    if row["status"] == "aborted":
        row["ending"] = metadata.pop("aborted", "")
    calls = [_call_from_1(call) for call in row["calls"]]
    return row | {"schema": SCHEMA, "untrained": untrained, "metadata": metadata, "calls": calls}


def _call_from_1(call: dict[str, Any]) -> dict[str, Any]:
    call, extra = dict(call), dict(call["extra"])
    terms: dict[str, Any] = {
        name: extra.pop(name)
        for name in ("constrained", "top_p", "top_k", "parallel_tool_calls", "raw_prompt")
        if name in extra
    }
    choice = extra.pop("tool_choice", None)
    if isinstance(choice, dict):
        terms |= {"tool_choice": "named", "named_tool": choice["name"]}
    elif choice is not None:
        terms["tool_choice"] = choice
    call |= {name: extra.pop(name) for name in ("stop", "rejected", "resumed", "checks") if name in extra}
    return call | {"extra": extra} | ({"terms": terms} if terms else {})
