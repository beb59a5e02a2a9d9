"""Builds the table of validation results by task and step, and the reward histograms of a run.

Invariant: each validation episode is in one cell. A task is better or worse by its success rate (mean reward without
successes) between its first and last validation since the judge changed last.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any


def build_task_matrix(rows: Iterable[Mapping[str, Any]], judge_change: int | None = None) -> dict[str, Any]:
    """Build the table of validation results.

    Args:
        rows: rows of the episode table.
        judge_change: last step that was scored by an earlier judge, or None. Validations up to it are not compared with
            later ones.

    Returns:
        steps: the steps with a validation. tasks: a row for each task, first those that became worse, then better ones,
        then the others. judge_change: the argument.
    """
    cells_by_task: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["split"] == "validation":
            cells_by_task.setdefault(row["task"], {}).setdefault(row["step"], []).append(row)
    since = -1 if judge_change is None else judge_change
    tasks = [_compare_task(name, cells, since) for name, cells in cells_by_task.items()]
    tasks.sort(key=lambda task: (not task["changed"], task["changed"], task["task"]))
    steps = sorted({step for cells in cells_by_task.values() for step in cells})
    return {"steps": steps, "tasks": tasks, "judge_change": judge_change}


def _compare_task(name: str, steps: Mapping[int, list[Mapping[str, Any]]], since: int) -> dict[str, Any]:
    """Build the row of a task: its cells by step, and its first and last compared validation.

    `changed` is 1 if the last validation since the judge's change is better than the first, -1 if worse, 0 if equal or
    unknown.

    Args:
        steps: the episodes of each validation, by step.
        since: validations up to this step are not compared.
    """
    cells = {step: _build_cell(rows) for step, rows in steps.items()}
    compared_steps = [step for step in cells if step > since] or [max(cells)]
    first_cell, last_cell = cells[min(compared_steps)], cells[max(compared_steps)]
    first_score, last_score = _score_cell(first_cell), _score_cell(last_cell)
    return {
        "task": name,
        "query": next(row["query"] for rows in steps.values() for row in rows),
        "cells": cells,
        "changed": 0
        if first_score is None or last_score is None
        else (last_score > first_score) - (last_score < first_score),
        "before": first_cell["uuid"],
        "after": last_cell["uuid"] if len(compared_steps) > 1 else None,
    }


def _build_cell(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize the episodes of one task in one validation. `uuid` is that of the attempt with the lowest number."""
    rows = sorted(rows, key=lambda row: row["repeat"])
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    outcomes = [row["success"] for row in rows if row["success"] is not None]
    return {
        "attempts": len(rows),
        "scored": len(rewards),
        "successes": sum(outcomes) if outcomes else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "uuid": rows[0]["uuid"],
    }


def _score_cell(cell: Mapping[str, Any]) -> float | None:
    """Return the success rate of a cell, or its mean reward if success was not judged, or None without a score."""
    score: float | None = cell["reward"] if cell["successes"] is None else cell["successes"] / cell["attempts"]
    return score


# Reward histograms of a run, by step.
# Invariant: each episode is in one cell: of its step and reward, or of its step without a score; all steps of a
# split share their bins.
COLUMNS = 100
"""Maximum number of columns; if there are more steps, each column has the same number of steps."""
BINS = 20
DISTINCT = 12
"""Maximum number of distinct rewards for which each reward has its own bin."""


def build_reward_bins(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Build the reward histograms of a run, by split and step.

    Args:
        rows: rows of the episode table.

    Returns:
        {split: {bins: [[low, high]], columns: [{first, last, counts, unscored, mean}]}}. A bin counts episodes with
        low <= reward < high, the last bin also those with reward high. If low == high, it counts a single value.
        `first` and `last` are the steps of a column.
    """
    splits: dict[str, dict[int, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        reward = row["reward"]
        is_number = isinstance(reward, (int, float)) and math.isfinite(reward)
        splits[row["split"]][row["step"]].append(float(reward) if is_number else None)
    return {split: _build_histogram(steps) for split, steps in sorted(splits.items())}


def _build_histogram(steps: Mapping[int, list[float | None]]) -> dict[str, Any]:
    """Build the histogram of a split: the bins, and one column of counts per step or per several steps."""
    known_rewards = sorted({reward for rewards in steps.values() for reward in rewards if reward is not None})
    bins = _make_bins(known_rewards)
    lows = [low for low, _ in bins]
    ordered_steps = sorted(steps)
    steps_per_column = math.ceil(len(ordered_steps) / COLUMNS)
    columns = []
    for start in range(0, len(ordered_steps), steps_per_column):
        column_steps = ordered_steps[start : start + steps_per_column]
        rewards = [reward for step in column_steps for reward in steps[step]]
        scored = [reward for reward in rewards if reward is not None]
        counts = [0] * len(bins)
        for reward in scored:
            counts[max(0, bisect_right(lows, reward) - 1)] += 1
        columns.append(
            {
                "first": column_steps[0],
                "last": column_steps[-1],
                "counts": counts,
                "unscored": len(rewards) - len(scored),
                "mean": math.fsum(scored) / len(scored) if scored else None,
            }
        )
    return {"bins": bins, "columns": columns}


def _make_bins(rewards: list[float]) -> list[tuple[float, float]]:
    """Return a bin (value, value) for each of a few distinct, sorted rewards, or BINS bins of equal width."""
    if len(rewards) <= DISTINCT:
        return [(value, value) for value in rewards]
    low, high = rewards[0], rewards[-1]
    edges = [low + (high - low) * (index / BINS) for index in range(BINS)] + [high]
    return list(zip(edges[:-1], edges[1:], strict=True))
