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
        beginning = f"{self.after} compared with {self.before}: "
        if self.difference is None:
            return beginning + "no held-out results of both"
        task_text = (
            "different tasks" if self.by_task is None else self.by_task.describe_difference().removesuffix(CHANCE)
        )
        # Success rates are printed in percent, rewards as plain numbers.
        value_format, error_format = ("+.1%", ".1%") if self.quantity == "success" else ("+.3g", ".2g")
        run_counts = f"{self.runs[0]} seeds" if self.is_paired else f"{self.runs[0]} and {self.runs[1]} runs"
        run_text = f"over {run_counts} {self.difference:{value_format}}{plus_minus(self.error, error_format)}"
        if min(self.runs) < 2:
            return f"{beginning}{task_text}; other seeds: unknown, because a group has one run"
        return f"{beginning}{task_text}; {run_text}" + ("" if self.is_real else CHANCE)


CHANCE = ": may be chance"


def compare_groups(comparison: RunComparison) -> list[GroupDifference]:
    """Return the difference of each other group and the first."""
    first_group, *other_groups = comparison.groups
    return [_compare_pair(comparison, first_group, other_group) for other_group in other_groups]


def welch_error(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a difference of means (Welch, Biometrika 34, 1947).

    None below two values in a group, or without spread.
    """
    if min(len(before), len(after)) < 2:
        return None
    # Variance of each group's mean; their sum is the variance of the difference.
    mean_variances = [variance(values) / len(values) for values in (before, after)]
    total_variance = sum(mean_variances)
    # Without spread, rounding would decide the interval.
    if total_variance < 1e-18:
        return None
    degrees_of_freedom = total_variance**2 / sum(
        mean_variance**2 / (len(values) - 1)
        for mean_variance, values in zip(mean_variances, (before, after), strict=True)
    )
    return t_quantile(max(1, math.floor(degrees_of_freedom))) * math.sqrt(total_variance)


def _compare_pair(comparison: RunComparison, before: RunGroup, after: RunGroup) -> GroupDifference:
    """Compute the difference of two groups of runs, `after` minus `before`.

    Runs are paired by seed if every run of both groups has a seed of its own, and the seeds are the same.
    """
    before_means, after_means = comparison.score_group(before), comparison.score_group(after)
    means_by_seed = [comparison.score_seeds(group) for group in (before, after)]
    is_paired = (
        len(means_by_seed[0]) == len(before_means)
        and means_by_seed[0].keys() == means_by_seed[1].keys()
        and len(before_means) == len(after_means)
    )
    seed_differences = [means_by_seed[1][seed] - value for seed, value in means_by_seed[0].items()] if is_paired else []
    pooled_scores = [comparison.pool_attempts(group) for group in (before, after)]
    return GroupDifference(
        before.label,
        after.label,
        comparison.quantity,
        compare(*pooled_scores) if _have_same_tasks(before, after) else None,
        fmean(after_means) - fmean(before_means) if before_means and after_means else None,
        half_width(seed_differences) if is_paired else welch_error(before_means, after_means),
        (len(before_means), len(after_means)),
        is_paired,
    )


def _have_same_tasks(before: RunGroup, after: RunGroup) -> bool:
    """True if all runs played tasks with equal ids and questions."""
    questions_by_run = [
        {attempt.task: attempt.question for attempt in run.attempts} for group in (before, after) for run in group.runs
    ]
    # A run without held-out attempts says nothing about its tasks.
    questions_by_run = [tasks for tasks in questions_by_run if tasks]
    return bool(questions_by_run) and all(tasks == questions_by_run[0] for tasks in questions_by_run)
