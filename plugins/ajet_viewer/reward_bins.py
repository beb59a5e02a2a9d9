"""Reward histograms of a run, by step.

Invariant: each episode is in one cell: of its step and reward, or of its step without a score; all steps of a split
share their bins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = 100
"""Maximum columns; more steps are merged into columns of equal width."""
BINS = 20
DISTINCT = 12
"""Maximum distinct rewards with a bin of their own."""


def build_reward_bins(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return {split: {bins: [[low, high]], columns: [{first, last, counts, unscored, mean}]}}.

    A bin holds low <= reward < high, the last bin also high; low == high is a single value.
    """
    splits: dict[str, dict[int, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        reward = row["reward"]
        known = isinstance(reward, (int, float)) and math.isfinite(reward)
        splits[row["split"]][row["step"]].append(float(reward) if known else None)
    return {split: _build_histogram(steps) for split, steps in sorted(splits.items())}


def _build_histogram(steps: Mapping[int, list[float | None]]) -> dict[str, Any]:
    known = sorted({reward for rewards in steps.values() for reward in rewards if reward is not None})
    bins = _make_bins(known)
    lows = [low for low, _ in bins]
    order = sorted(steps)
    together = math.ceil(len(order) / COLUMNS)
    columns = []
    for first in range(0, len(order), together):
        chosen = order[first : first + together]
        rewards = [reward for step in chosen for reward in steps[step]]
        scored = [reward for reward in rewards if reward is not None]
        counts = [0] * len(bins)
        for reward in scored:
            counts[max(0, bisect_right(lows, reward) - 1)] += 1
        columns.append(
            {
                "first": chosen[0],
                "last": chosen[-1],
                "counts": counts,
                "unscored": len(rewards) - len(scored),
                "mean": math.fsum(scored) / len(scored) if scored else None,
            }
        )
    return {"bins": bins, "columns": columns}


def _make_bins(known: list[float]) -> list[tuple[float, float]]:
    if len(known) <= DISTINCT:
        return [(value, value) for value in known]
    low, high = known[0], known[-1]
    edges = [low + (high - low) * (index / BINS) for index in range(BINS)] + [high]
    return list(zip(edges[:-1], edges[1:], strict=True))
