"""Scores of one model over tasks with one or more attempts, and the comparison of two models.

Invariant: means are over all tasks, not over scored attempts. A failed attempt solves no task and counts no more than
the lowest score; only failures of ajet itself are left out, and counted. Tasks are the independent units of every
interval. Only tasks of both models are compared, with their number. The test is a paired permutation test without a
distribution assumption; a seed makes the result repeatable.
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
    """Return the probability that one of k attempts succeeds, given n attempts with c successes.

    1 - C(n - c, k) / C(n, k) is the unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on
    Code", 2021, equation 1.

    Args:
        attempts: n.
        successes: c.

    Raises:
        ValueError: k is larger than n.
    """
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} needs {k} attempts, and there are {attempts}")
    return 1.0 - comb(attempts - successes, k) / comb(attempts, k)


@dataclass(frozen=True, slots=True)
class TaskRate:
    """A rate over tasks, such as pass@k, with its 95 % interval."""

    value: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.0%}–{self.high:.0%})"


@dataclass(frozen=True)
class Scores:
    """Scores of one model's attempts, or of the attempts with one tag."""

    attempts: Sequence[AttemptRecord]
    lowest: float = 0.0
    """Reward of a failed attempt: 0, or less if rewards go below 0 (`failure_reward`)."""
    by_task: dict[str, list[AttemptRecord]] = field(init=False)  # counted attempts by task

    def __post_init__(self) -> None:
        by_task: dict[str, list[AttemptRecord]] = {}
        for attempt in self.attempts:
            if not attempt.left_out:
                by_task.setdefault(attempt.task, []).append(attempt)
        object.__setattr__(self, "by_task", by_task)

    @property
    def left_out(self) -> int:
        """Number of attempts lost to failures of ajet itself."""
        return sum(attempt.left_out for attempt in self.attempts)

    @property
    def failed(self) -> int:
        """Number of failed attempts, without those lost to failures of ajet itself."""
        return sum(bool(attempt.failure) and not attempt.left_out for attempt in self.attempts)

    @property
    def unscored(self) -> int:
        """Number of attempts that ended well but have no reward, because the judge did not decide."""
        return sum(not attempt.failure and attempt.reward is None and not attempt.left_out for attempt in self.attempts)

    @property
    def scored(self) -> int:
        """Number of attempts with a reward, without those lost to failures of ajet itself."""
        return sum(attempt.reward is not None and not attempt.left_out for attempt in self.attempts)

    @property
    def repeats(self) -> int:
        """Largest number of counted attempts at a task."""
        return max((len(attempts) for attempts in self.by_task.values()), default=0)

    @cached_property
    def has_success_verdicts(self) -> bool:
        """True if success was judged for these attempts, so that a success rate can be reported."""
        return has_success_verdicts(self.attempts)

    @cached_property
    def solved(self) -> dict[str, float]:
        """Share of successful attempts at each task, by task id."""
        return {task: fmean(attempt.success for attempt in attempts) for task, attempts in self.by_task.items()}

    @cached_property
    def rewards(self) -> dict[str, float]:
        """Mean reward of each task's attempts, by task id. A failed attempt counts as `lowest`."""
        return {
            task: fmean(self.reward_or_lowest(attempt) for attempt in attempts)
            for task, attempts in self.by_task.items()
        }

    def reward_or_lowest(self, attempt: AttemptRecord) -> float:
        """Return the attempt's reward, or `lowest` if it failed."""
        return self.lowest if attempt.reward is None else attempt.reward

    def pass_rate(self, k: int) -> TaskRate | None:
        """Return pass@k over the tasks with at least k counted attempts, with its 95 % interval.

        None if success was not judged, or if no task has so many attempts.
        """
        if not self.has_success_verdicts:
            return None
        rates = [
            pass_at_k(len(attempts), sum(attempt.success for attempt in attempts), k)
            for attempts in self.by_task.values()
            if len(attempts) >= k
        ]
        if not rates:
            return None
        value = fmean(rates)
        return TaskRate(value, *wilson(value, len(rates)), tasks=len(rates))

    def ks(self) -> list[int]:
        """Return the k for which pass@k is reported: the powers of two up to the attempts per task, and that number."""
        attempts_per_task = self.repeats
        return (
            sorted({1 << exponent for exponent in range(attempts_per_task.bit_length())} | {attempts_per_task})
            if attempts_per_task
            else []
        )

    @property
    def reward(self) -> float | None:
        """Mean reward over tasks, or None without a scored attempt."""
        return fmean(self.rewards.values()) if self.scored else None

    @property
    def reward_error(self) -> float | None:
        """Half of the 95 % interval of the mean reward, or None for fewer than two tasks."""
        return half_width(list(self.rewards.values())) if self.scored else None

    def group_by_tag(self, keys: Sequence[str] = TAG_KEYS) -> dict[str, Scores]:
        """Return the scores of the attempts with each tag. A task with several tags counts for each.

        Args:
            keys: Metadata keys of the tags.
        """
        attempts_by_tag: dict[str, list[AttemptRecord]] = {}
        for attempt in self.attempts:
            for tag in attempt.tags(keys):
                attempts_by_tag.setdefault(tag, []).append(attempt)
        return {tag: Scores(attempts_by_tag[tag], self.lowest) for tag in sorted(attempts_by_tag)}

    def group_by_scorer(self) -> dict[str, Scores]:
        """Return the scores of the attempts by the scorer that judged them; attempts without a scorer are left out."""
        by_scorer: dict[str, list[AttemptRecord]] = {}
        for attempt in self.attempts:
            if attempt.scorer:
                by_scorer.setdefault(attempt.scorer, []).append(attempt)
        return {name: Scores(by_scorer[name], self.lowest) for name in sorted(by_scorer)}

    def average_by_scorer(self) -> dict[str, tuple[float | None, int, int]]:
        """Return (mean score or None, number of scores, number of judged attempts) of each scorer."""
        by_scorer: dict[str, list[float | None]] = {}
        for attempt in self.attempts:
            for name, score in attempt.parts.items():
                by_scorer.setdefault(name, []).append(score)
        valid_scores = {name: [score for score in scores if score is not None] for name, scores in by_scorer.items()}
        return {
            name: (fmean(scores) if scores else None, len(scores), len(by_scorer[name]))
            for name, scores in valid_scores.items()
        }


def failure_reward(attempts: Iterable[AttemptRecord]) -> float:
    """Return the reward that a failed attempt counts with: 0, or the lowest reward if that is below 0.

    Compared models share the value, so it is computed over the attempts of all of them.
    """
    return min([0.0, *(attempt.reward for attempt in attempts if attempt.reward is not None and not attempt.left_out)])


EXACT_UP_TO = 14
"""Maximum number of differing tasks for the exact permutation test."""
EXCHANGES = 20_000
"""Number of random exchanges in the permutation test of more than EXACT_UP_TO differing tasks."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of the scores `after` and `before`, over the tasks that both have."""

    quantity: str
    """success, or reward where success was not judged."""
    tasks: int  # number of shared tasks
    difference: float
    """Of the means over tasks, after - before."""
    error: float | None
    """Half of the difference's 95 % interval; None below two tasks, and for equal differences."""
    p: float
    test: str
    """Name of the test behind `p`."""
    noise: float | None
    """Upper bound (95 %) of the difference between two runs of one model, from the spread of attempts; None for single
    attempts."""
    gained: tuple[str, ...]
    """Tasks solved only by `after`; without success verdicts, tasks with a higher reward."""
    lost: tuple[str, ...]  # tasks solved only by `before`

    @property
    def is_beyond_noise(self) -> bool:
        """True if the difference is unlikely to be chance (p below 0.05)."""
        return self.p < 0.05

    def describe_difference(self) -> str:
        """Return the difference as a sentence, with its 95 % interval, the p-value and the test."""
        sign = f"{self.difference:+.1%}" if self.quantity == "success" else f"{self.difference:+.3g}"
        interval = plus_minus(self.error, ".0%" if self.quantity == "success" else ".2g")
        text = f"{self.quantity} {sign}{interval} over {self.tasks} tasks, p = {_format_p(self.p)} ({self.test})"
        return text if self.is_beyond_noise else f"{text}: may be chance"

    def describe_noise(self) -> str:
        """Return by how much two runs of the same model differ, as a sentence."""
        if self.noise is None:
            return "noise between two runs of one model: unknown with one attempt per task (--repeat 4 measures it)"
        if self.noise == 0:
            return "noise between two runs of one model: unknown, because the attempts at each task are equal"
        amount = f"{self.noise:.1%}" if self.quantity == "success" else f"{self.noise:.2g}"
        return f"two runs of one model differ by up to {amount}"


def compare(before: Scores, after: Scores, *, seed: int = 0) -> Comparison | None:
    """Return the comparison of two models over the tasks that both have, or None without such tasks.

    Success is compared if it was judged for both models, else the mean reward.

    Args:
        seed: Makes the permutation test repeatable.
    """
    judged = before.has_success_verdicts and after.has_success_verdicts
    before_by_task, after_by_task = (before.solved, after.solved) if judged else (before.rewards, after.rewards)
    shared = [task for task in before_by_task if task in after_by_task]
    if not shared:
        return None
    differences = [after_by_task[task] - before_by_task[task] for task in shared]
    p, test = paired_p(differences, seed=seed)
    if judged:  # solved: in at least half of its attempts
        gained = [task for task in shared if before_by_task[task] < 0.5 <= after_by_task[task]]
        lost = [task for task in shared if after_by_task[task] < 0.5 <= before_by_task[task]]
    else:
        gained = [task for task in shared if after_by_task[task] > before_by_task[task]]
        lost = [task for task in shared if after_by_task[task] < before_by_task[task]]
    noise = [noise_floor(scores, shared, success=judged) for scores in (before, after)]
    known_noise = [bound for bound in noise if bound is not None]
    return Comparison(
        quantity="success" if judged else "reward",
        tasks=len(shared),
        difference=fmean(differences),
        error=half_width(differences),
        p=p,
        test=test,
        noise=max(known_noise) if len(known_noise) == 2 else None,
        gained=tuple(gained),
        lost=tuple(lost),
    )


def paired_p(differences: Sequence[float], *, seed: int = 0) -> tuple[float, str]:
    """Return the p-value of the mean of paired differences under random signs, and the test's name.

    If all nonzero differences have one size, as with one attempt per task, this is the exact sign test (for success:
    McNemar, Psychometrika 12, 1947, by the binomial distribution). Else a paired permutation test (Fisher, The Design
    of Experiments, 1935) with all signs up to 2^14, else 20,000 random ones, counting the observed signs (Phipson &
    Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010).
    """
    values = np.array([value for value in differences if abs(value) > 1e-12])
    if not len(values):
        return 1.0, "no task differs"
    sizes = np.abs(values)
    if np.ptp(sizes) < 1e-9:
        up = int((values > 0).sum())
        fewer, count = min(up, len(values) - up), len(values)
        tail = sum(math.comb(count, successes) for successes in range(fewer + 1)) / 2**count
        return min(1.0, 2 * tail), "exact McNemar test" if abs(sizes[0] - 1) < 1e-9 else "exact sign test"
    # A little less, so that rounding does not exclude the observed signs themselves.
    observed = abs(values.sum()) * (1 - 1e-9)
    if len(values) <= EXACT_UP_TO:
        bits = np.arange(1 << len(values))[:, None] >> np.arange(len(values)) & 1
        return float((np.abs((1 - 2 * bits) @ sizes) >= observed).mean()), "exact permutation test"
    rng = np.random.default_rng(seed)
    extreme_count = 0
    for _ in range(EXCHANGES // 1000):
        signs = rng.integers(0, 2, (1000, len(values)), dtype=np.int8) * 2 - 1
        extreme_count += int((np.abs(signs @ sizes) >= observed).sum())
    return (extreme_count + 1) / (EXCHANGES + 1), "permutation test"


def noise_floor(scores: Scores, tasks: Sequence[str], *, success: bool) -> float | None:
    """Return the 95 % bound of the difference between the means of two runs of this model with equal attempts.

    Halves of a task's attempts act as runs of half length. The mean squared difference over all halvings is 4 s^2 / n
    for n attempts of variance s^2 (unbiased); runs of full length have 2 s^2 / n. Variances add over tasks. None if a
    task has a single attempt.
    """
    total = 0.0
    for task in tasks:
        attempts = scores.by_task[task]
        if len(attempts) < 2:
            return None
        total += (
            2
            * variance(float(attempt.success) if success else scores.reward_or_lowest(attempt) for attempt in attempts)
            / len(attempts)
        )
    return Z * math.sqrt(total) / len(tasks)


def _format_p(value: float) -> str:
    """Return a p-value as text with three or four decimals."""
    return f"{value:.3f}" if value >= 0.001 else "below 0.001" if value < 1e-4 else f"{value:.4f}"
