"""How the rewards of a run's episodes spread, step by step.

Invariant: every episode is in exactly one cell: of its step and its reward, or of its step and "no score"; the bins are
those of the whole split, so that steps can be compared.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = 100
"""More steps than these are put together, as many into each column as into every other."""
BINS = 20
DISTINCT = 12
"""So many different rewards have a bin each."""


def build_reward_bins(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """{split: {bins: [[low, high]], columns: [{first, last, counts, unscored, mean}]}}, counts in the order of bins.
    A bin holds what is at least `low` and less than `high`, the last one `high`, too; low == high: this value."""
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
