"""The difference of two groups of runs, over tasks and over runs.

Invariant: only tasks that are the same in both groups are paired. The interval over tasks says what other tasks would
change with these runs; the interval over runs says what other seeds would change with these tasks. Runs of equal seed
are paired, because they share the order of tasks. A difference is called real only if both exclude 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from ajet.record.intervals import half_width, plus_minus, t_quantile
from ajet.record.scores import Comparison, compare
from ajet_viewer.comparison.groups import RunComparison, RunGroup


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """Difference of the held-out rewards of two groups of runs: `after` minus `before`."""

    before: str
    after: str
    quantity: str
    by_task: Comparison | None
    """Paired by task; None if the groups played different tasks."""
    difference: float | None
    """Difference of the means over runs; None unless both groups have held-out results."""
    error: float | None
    """Half of its 95 % interval over runs; None with a single run, or without spread."""
    runs: tuple[int, int]
    is_paired: bool
    """True if the runs are paired by their seeds, which are the same in both groups; else Welch's interval."""

    @property
    def is_real(self) -> bool:
        """True if neither tasks nor seeds explain the difference."""
        by_runs = self.difference is not None and self.error is not None and abs(self.difference) > self.error
        return by_runs and (self.by_task is None or self.by_task.is_beyond_noise)

    def describe(self) -> str:
        """Describe the difference in one line."""
        line = f"{self.after} compared with {self.before}: "
        if self.difference is None:
            return line + "no held-out results of both"
        tasks = "different tasks" if self.by_task is None else self.by_task.describe_difference().removesuffix(CHANCE)
        form, wide = ("+.1%", ".1%") if self.quantity == "success" else ("+.3g", ".2g")
        run_counts = f"{self.runs[0]} seeds" if self.is_paired else f"{self.runs[0]} and {self.runs[1]} runs"
        runs = f"over {run_counts} {self.difference:{form}}{plus_minus(self.error, wide)}"
        if min(self.runs) < 2:
            return f"{line}{tasks}; other seeds: unknown, because a group has one run"
        return f"{line}{tasks}; {runs}" + ("" if self.is_real else CHANCE)


CHANCE = ": may be chance"


def compare_groups(comparison: RunComparison) -> list[GroupDifference]:
    """Return the difference of each other group and the first."""
    first, *others = comparison.groups
    return [_compare_pair(comparison, first, other) for other in others]


def welch_error(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a difference of means (Welch, Biometrika 34, 1947).

    None below two values in a group, or without spread.
    """
    if min(len(before), len(after)) < 2:
        return None
    shares = [variance(values) / len(values) for values in (before, after)]
    total = sum(shares)
    if total < 1e-18:
        return None
    freedom = total**2 / sum(share**2 / (len(v) - 1) for share, v in zip(shares, (before, after), strict=True))
    return t_quantile(max(1, math.floor(freedom))) * math.sqrt(total)


def _compare_pair(comparison: RunComparison, before: RunGroup, after: RunGroup) -> GroupDifference:
    was, now = comparison.score_group(before), comparison.score_group(after)
    by_seed = [comparison.score_seeds(group) for group in (before, after)]
    is_paired = len(by_seed[0]) == len(was) and by_seed[0].keys() == by_seed[1].keys() and len(was) == len(now)
    pairs = [by_seed[1][seed] - value for seed, value in by_seed[0].items()] if is_paired else []
    pooled = [comparison.pool_attempts(group) for group in (before, after)]
    return GroupDifference(
        before.label,
        after.label,
        comparison.quantity,
        compare(*pooled) if _have_same_tasks(before, after) else None,
        fmean(now) - fmean(was) if was and now else None,
        half_width(pairs) if is_paired else welch_error(was, now),
        (len(was), len(now)),
        is_paired,
    )


def _have_same_tasks(before: RunGroup, after: RunGroup) -> bool:
    """True if all runs played tasks with equal ids and questions."""
    questions_by_run = [{a.task: a.question for a in run.attempts} for group in (before, after) for run in group.runs]
    questions_by_run = [tasks for tasks in questions_by_run if tasks]
    return bool(questions_by_run) and all(tasks == questions_by_run[0] for tasks in questions_by_run)
