"""Scores: what one model came to over tasks, each attempted one or several times; two models compared task by task.

Invariant: over all tasks, never over survivors. A failed attempt solves nothing and is worth no more than the worst
that was scored; only what ajet itself failed at is left out, and counted. Tasks are what is independent: every interval
is over tasks, however often each was attempted. Only tasks that both models have are compared, and how many those are
is said. The test asks one thing: how likely a difference as large would be if it were chance which of the two results
of a task belongs to which model. It needs no distribution, and a seed makes it repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb
from statistics import fmean, variance

import numpy as np

from ajet.record.attempts import TAG_KEYS, AttemptRecord, has_success_verdicts
from ajet.record.intervals import Z, half_width, plus_minus, wilson


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """The probability that one of k attempts succeeds, from n of which c did: 1 - C(n - c, k) / C(n, k), the unbiased
    estimator of Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1. Raises ValueError
    for k beyond n."""
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} is not to be had from {attempts} attempts")
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


@dataclass(frozen=True, slots=True)
class TaskRate:
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

    attempts: Sequence[AttemptRecord]
    lowest: float = 0.0
    """What a failed attempt is worth: 0, or less where rewards go below it (`failure_reward`)."""
    by_task: dict[str, list[AttemptRecord]] = field(init=False)
    """The attempts that count."""

    def __post_init__(self) -> None:
        by_task: dict[str, list[AttemptRecord]] = {}
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
    def has_success_verdicts(self) -> bool:
        """Whether success was judged."""
        return has_success_verdicts(self.attempts)

    @cached_property
    def solved(self) -> dict[str, float]:
        """The share of attempts that succeeded, by task."""
        return {task: fmean(a.success for a in attempts) for task, attempts in self.by_task.items()}

    @cached_property
    def rewards(self) -> dict[str, float]:
        """The mean reward of the attempts, by task; a failed one counts what a failure is worth."""
        return {task: fmean(self.reward_or_lowest(a) for a in attempts) for task, attempts in self.by_task.items()}

    def reward_or_lowest(self, attempt: AttemptRecord) -> float:
        """The attempt's reward, or what a failure is worth."""
        return self.lowest if attempt.reward is None else attempt.reward

    def pass_rate(self, k: int) -> TaskRate | None:
        """pass@k over the tasks with at least k attempts that count; None where success was not judged, or no task has
        so many."""
        if not self.has_success_verdicts:
            return None
        rates = [
            pass_at_k(len(attempts), sum(a.success for a in attempts), k)
            for attempts in self.by_task.values()
            if len(attempts) >= k
        ]
        if not rates:
            return None
        value = fmean(rates)
        return TaskRate(value, *wilson(value, len(rates)), tasks=len(rates))

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

    def group_by_tag(self, keys: Sequence[str] = TAG_KEYS) -> dict[str, Scores]:
        """The scores at the tasks of each tag, by name; a task with several counts for each of them."""
        parts: dict[str, list[AttemptRecord]] = {}
        for attempt in self.attempts:
            for tag in attempt.tags(keys):
                parts.setdefault(tag, []).append(attempt)
        return {tag: Scores(parts[tag], self.lowest) for tag in sorted(parts)}

    def group_by_scorer(self) -> dict[str, Scores]:
        """The scores of the attempts of each choice of scorers, by name, as stages and rows choose them; those that
        failed before one was asked are in none."""
        parts: dict[str, list[AttemptRecord]] = {}
        for attempt in self.attempts:
            if attempt.scorer:
                parts.setdefault(attempt.scorer, []).append(attempt)
        return {name: Scores(parts[name], self.lowest) for name in sorted(parts)}

    def average_by_scorer(self) -> dict[str, tuple[float | None, int, int]]:
        """For each scorer that was asked: the mean of what it gave, over how many, of how many."""
        given: dict[str, list[float | None]] = {}
        for attempt in self.attempts:
            for name, score in attempt.parts.items():
                given.setdefault(name, []).append(score)
        found = {name: [score for score in scores if score is not None] for name, scores in given.items()}
        return {
            name: (fmean(scores) if scores else None, len(scores), len(given[name])) for name, scores in found.items()
        }


def failure_reward(attempts: Iterable[AttemptRecord]) -> float:
    """What a failed attempt is worth among these: 0 or the lowest reward, whichever is less. Models that are compared
    share it."""
    return min([0.0, *(a.reward for a in attempts if a.reward is not None and not a.left_out)])


EXACT_UP_TO = 14
"""Tasks that differ, up to which all exchanges are counted out."""
EXCHANGES = 20_000
"""Random ones that are tried beyond that."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of `after` to `before` over the tasks that both have."""

    quantity: str
    """success, or reward where success was not judged."""
    tasks: int
    """That both have."""
    difference: float
    """Of the means over tasks, after - before."""
    error: float | None
    """Half of its 95 % interval; None below two tasks, and where all differ equally."""
    p: float
    test: str
    """Which one `p` is of."""
    noise: float | None
    """What two runs of one model differ by in 19 of 20 cases at most, from how the attempts at each task differ; None
    where each was attempted once."""
    gained: tuple[str, ...]
    """Tasks that were not solved before and are now; without success, whose reward rose."""
    lost: tuple[str, ...]
    """The other way round."""

    @property
    def is_beyond_noise(self) -> bool:
        """Whether chance is no likely reason: p below 0.05."""
        return self.p < 0.05

    def describe_difference(self) -> str:
        """For a line."""
        sign = f"{self.difference:+.1%}" if self.quantity == "success" else f"{self.difference:+.3g}"
        wide = plus_minus(self.error, ".0%" if self.quantity == "success" else ".2g")
        text = f"{self.quantity} {sign}{wide} over {self.tasks} tasks, p = {_format_p(self.p)} ({self.test})"
        return text if self.is_beyond_noise else f"{text}: may be chance"

    def describe_noise(self) -> str:
        """A line on what two runs of one model would differ by."""
        if self.noise is None:
            return "two runs of one model: not known from one attempt a task (--repeat 4 tells)"
        if self.noise == 0:
            return "two runs of one model: not known, the attempts at each task are equal"
        shown = f"{self.noise:.1%}" if self.quantity == "success" else f"{self.noise:.2g}"
        return f"two runs of one model differ by up to {shown}"


def compare(before: Scores, after: Scores, *, seed: int = 0) -> Comparison | None:
    """The comparison over shared tasks; None where they share none."""
    judged = before.has_success_verdicts and after.has_success_verdicts
    was, now = (before.solved, after.solved) if judged else (before.rewards, after.rewards)
    shared = [task for task in was if task in now]
    if not shared:
        return None
    differences = [now[task] - was[task] for task in shared]
    p, test = paired_p(differences, seed=seed)
    if judged:  # solved: in at least half of its attempts
        gained = [task for task in shared if was[task] < 0.5 <= now[task]]
        lost = [task for task in shared if now[task] < 0.5 <= was[task]]
    else:
        gained = [task for task in shared if now[task] > was[task]]
        lost = [task for task in shared if now[task] < was[task]]
    noise = [noise_floor(each, shared, success=judged) for each in (before, after)]
    known = [each for each in noise if each is not None]
    return Comparison(
        quantity="success" if judged else "reward",
        tasks=len(shared),
        difference=fmean(differences),
        error=half_width(differences),
        p=p,
        test=test,
        noise=max(known) if len(known) == 2 else None,
        gained=tuple(gained),
        lost=tuple(lost),
    )


def paired_p(differences: Sequence[float], *, seed: int = 0) -> tuple[float, str]:
    """How likely a mean at least as far from 0 is if each paired difference might as well have the other sign, and the
    test's name.

    Where all that are not 0 are equally large, as with one attempt a task, that is the exact sign test (of success:
    McNemar, Psychometrika 12, 1947, by the binomial distribution). Else it is the permutation test for pairs (Fisher,
    The Design of Experiments, 1935): of all signs up to 2^14, else of 20,000 drawn ones, the observed counted as one of
    them (Phipson & Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010).
    """
    values = np.array([value for value in differences if abs(value) > 1e-12])
    if not len(values):
        return 1.0, "no task differs"
    sizes = np.abs(values)
    if np.ptp(sizes) < 1e-9:
        up = int((values > 0).sum())
        fewer, count = min(up, len(values) - up), len(values)
        tail = sum(math.comb(count, each) for each in range(fewer + 1)) / 2**count
        return min(1.0, 2 * tail), "exact McNemar test" if abs(sizes[0] - 1) < 1e-9 else "exact sign test"
    observed = abs(values.sum()) * (1 - 1e-9)
    if len(values) <= EXACT_UP_TO:
        bits = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return float((np.abs((1 - 2 * bits) @ sizes) >= observed).mean()), "exact permutation test"
    draw = np.random.default_rng(seed)
    reached = 0
    for _ in range(EXCHANGES // 1000):
        signs = draw.integers(0, 2, (1000, len(values)), dtype=np.int8) * 2 - 1
        reached += int((np.abs(signs @ sizes) >= observed).sum())
    return (reached + 1) / (EXCHANGES + 1), "permutation test"


def noise_floor(scores: Scores, tasks: Sequence[str], *, success: bool) -> float | None:
    """How far the means of two runs of this model, of as many attempts each, lie apart in 95 % of cases, at most.

    Halves of the attempts at a task are such runs, of half the length. The mean of their squared difference over all
    ways to halve them is 4 s^2 / n for n attempts of variance s^2 (unbiased); for runs of the whole length it is
    2 s^2 / n. Over tasks these add up. None where a task has one attempt only.
    """
    total = 0.0
    for task in tasks:
        attempts = scores.by_task[task]
        if len(attempts) < 2:
            return None
        total += (
            2 * variance(float(a.success) if success else scores.reward_or_lowest(a) for a in attempts) / len(attempts)
        )
    return Z * math.sqrt(total) / len(tasks)


def _format_p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001" if value < 1e-4 else f"{value:.4f}"
