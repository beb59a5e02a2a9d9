"""Verdict <-> its part of an episode's line.

Invariant: `decode_verdict(encode_verdict(verdict))` is the verdict of an episode; what says nothing is not in the line,
so that the line of a verdict with a reward alone is as short as it was before there was anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.schema.episode import Verdict
from ajet.schema.process_reward import ProcessReward


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON values."""
    row: dict[str, Any] = {"reward": verdict.reward, "success": verdict.success, "reason": verdict.reason}
    if verdict.scorer or verdict.parts:
        row |= {"scorer": verdict.scorer, "parts": dict(verdict.parts)}
    if verdict.process:
        row["process"] = [part.model_dump(exclude_defaults=True) for part in verdict.process]
    if verdict.metrics:
        row["metrics"] = dict(verdict.metrics)
    if verdict.details:
        row["details"] = dict(verdict.details)
    return row


def decode_verdict(row: Mapping[str, Any]) -> Verdict:
    """The verdict out of JSON values. Raises TypeError, ValueError and kin for what is none."""
    process = tuple(ProcessReward.model_validate(part) for part in row.get("process", ()))
    return Verdict(**{**row, "process": process})
