"""Scores: what one model came to over tasks, each attempted one or several times.

Invariant: over all tasks, never over survivors. A failed attempt solves nothing and is worth no more than the worst
that was scored; only what ajet itself failed at is left out, and counted. Tasks are what is independent: every interval
is over tasks, however often each was attempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb
from statistics import fmean

from ajet.record.attempts import TAG_KEYS, Attempt, tells_success
from ajet.record.intervals import half_width, wilson


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The probability that one of k attempts succeeds, from n of which c did: 1 - C(n - c, k) / C(n, k), the unbiased
    estimator of Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1. Raises ValueError
    for k beyond n."""
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} is not to be had from {attempts} attempts")
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate over tasks with its 95 % interval."""

    value: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.0%}–{self.high:.0%})"


@dataclass(frozen=True)
class Scores:
    """The scores of one model's attempts, or of those at tasks with one tag."""

    attempts: Sequence[Attempt]
    lowest: float = 0.0
    """What a failed attempt is worth: 0, or less where rewards go below it (`worth_of_failure`)."""
    by_task: dict[str, list[Attempt]] = field(init=False)
    """The attempts that count."""

    def __post_init__(self) -> None:
        by_task: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            if not attempt.left_out:
                by_task.setdefault(attempt.task, []).append(attempt)
        object.__setattr__(self, "by_task", by_task)

    @property
    def left_out(self) -> int:
        """Attempts that ajet itself failed at."""
        return sum(attempt.left_out for attempt in self.attempts)

    @property
    def failed(self) -> int:
        """Attempts that failed and do count."""
        return sum(bool(attempt.failure) and not attempt.left_out for attempt in self.attempts)

    @property
    def unscored(self) -> int:
        """Attempts that ended well and have no reward: the judge did not decide."""
        return sum(not attempt.failure and attempt.reward is None and not attempt.left_out for attempt in self.attempts)

    @property
    def scored(self) -> int:
        """Attempts with a reward."""
        return sum(attempt.reward is not None and not attempt.left_out for attempt in self.attempts)

    @property
    def repeats(self) -> int:
        """The most attempts that any task has."""
        return max((len(attempts) for attempts in self.by_task.values()), default=0)

    @cached_property
    def tells_success(self) -> bool:
        """Whether success was judged."""
        return tells_success(self.attempts)

    @cached_property
    def solved(self) -> dict[str, float]:
        """The share of attempts that succeeded, by task."""
        return {task: fmean(a.success for a in attempts) for task, attempts in self.by_task.items()}

    @cached_property
    def rewards(self) -> dict[str, float]:
        """The mean reward of the attempts, by task; a failed one counts what a failure is worth."""
        return {task: fmean(self.worth(a) for a in attempts) for task, attempts in self.by_task.items()}

    def worth(self, attempt: Attempt) -> float:
        """The attempt's reward, or what a failure is worth."""
        return self.lowest if attempt.reward is None else attempt.reward

    def passes(self, k: int) -> Rate | None:
        """pass@k over the tasks with at least k attempts that count; None where success was not judged, or no task has
        so many."""
        if not self.tells_success:
            return None
        rates = [
            pass_at_k(len(attempts), sum(a.success for a in attempts), k)
            for attempts in self.by_task.values()
            if len(attempts) >= k
        ]
        if not rates:
            return None
        value = fmean(rates)
        return Rate(value, *wilson(value, len(rates)), tasks=len(rates))

    def ks(self) -> list[int]:
        """The k of pass@k that these attempts give: powers of two, and how many there are."""
        most = self.repeats
        return sorted({1 << exponent for exponent in range(most.bit_length())} | {most}) if most else []

    @property
    def reward(self) -> float | None:
        """The mean over tasks; None without one scored attempt."""
        return fmean(self.rewards.values()) if self.scored else None

    @property
    def reward_error(self) -> float | None:
        """Half of its 95 % interval; None for fewer than two tasks."""
        return half_width(list(self.rewards.values())) if self.scored else None

    def tagged(self, keys: Sequence[str] = TAG_KEYS) -> dict[str, Scores]:
        """The scores at the tasks of each tag, by name; a task with several counts for each of them."""
        parts: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            for tag in attempt.tags(keys):
                parts.setdefault(tag, []).append(attempt)
        return {tag: Scores(parts[tag], self.lowest) for tag in sorted(parts)}

    def by_scorer(self) -> dict[str, Scores]:
        """The scores of the attempts of each choice of scorers, by name, as stages and rows choose them; those that
        failed before one was asked are in none."""
        parts: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            if attempt.scorer:
                parts.setdefault(attempt.scorer, []).append(attempt)
        return {name: Scores(parts[name], self.lowest) for name in sorted(parts)}

    def each_scorer(self) -> dict[str, tuple[float | None, int, int]]:
        """For each scorer that was asked: the mean of what it gave, over how many, of how many."""
        given: dict[str, list[float | None]] = {}
        for attempt in self.attempts:
            for name, score in attempt.parts.items():
                given.setdefault(name, []).append(score)
        found = {name: [score for score in scores if score is not None] for name, scores in given.items()}
        return {
            name: (fmean(scores) if scores else None, len(scores), len(given[name])) for name, scores in found.items()
        }


def worth_of_failure(attempts: Iterable[Attempt]) -> float:
    """What a failed attempt is worth among these: 0 or the lowest reward, whichever is less. Models that are compared
    share it."""
    return min([0.0, *(a.reward for a in attempts if a.reward is not None and not a.left_out)])
