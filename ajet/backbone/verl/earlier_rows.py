"""Rows of earlier versions, which a checkpoint of verl's queue may hold: they do not bring their episodes.

Invariant: known here and nowhere else. What such a row does not say is made up as it was then: the task has its name
alone, calls are missing, and log-probabilities at temperature 1 are those that were sampled from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ajet.schema.episode import Episode, Verdict
from ajet.schema.task import Task
from ajet.schema.timeline import SampledSpan, Timeline


def episode(rows: Sequence[Mapping[str, Any]]) -> Episode:
    """That of these rows, which are all it has, in order."""
    about = rows[0]["extra_fields"]["ajet"]
    return Episode(
        uuid=about["uuid"],
        task=Task(task_id=about["task_id"]),
        repeat=about["repeat"],
        step=about["step"],
        split="train",
        run=about["run"],
        verdict=Verdict(about["reward"]),
        timelines=[_timeline(row) for row in rows] if about["count"] else [],
    )


def _timeline(row: Mapping[str, Any]) -> Timeline:
    about = row["extra_fields"]["ajet"]
    prompt, response, sampled, logprobs = (
        np.asarray(row[name]) for name in ("prompts", "responses", "response_mask", "rollout_log_probs")
    )
    none = np.zeros(prompt.size)
    mask = np.concatenate([none, sampled]).astype(np.bool_)
    values = np.concatenate([none, logprobs]).astype(np.float32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    if "versions" in about:  # [how many tokens, their version] of each run of equal ones; older rows do not say them
        counts, each = zip(*about["versions"], strict=True)
        versions[mask] = np.repeat(each, counts)
    return Timeline(
        leaf=about["leaf"],
        agent=about["agent"],
        target=about["target"],
        ids=np.concatenate([prompt, response]).astype(np.int32),
        mask=mask,
        logprobs=values,
        logprobs_unit=values,
        versions=versions,
        spans=tuple(SampledSpan(*span) for span in about["spans"]),
    )
