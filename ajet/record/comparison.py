"""Comparison: two models over the same tasks, task by task.

Invariant: only tasks that both have are compared, and how many those are is said. The test asks one thing: how likely a
difference as large would be if it were chance which of the two results of a task belongs to which model. It needs no
distribution, and a seed makes it repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

from ajet.record.intervals import Z, half_width, plus_minus
from ajet.record.scores import Scores

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
    def beyond_noise(self) -> bool:
        """Whether chance is no likely reason: p below 0.05."""
        return self.p < 0.05

    def words(self) -> str:
        """For a line."""
        sign = f"{self.difference:+.1%}" if self.quantity == "success" else f"{self.difference:+.3g}"
        wide = plus_minus(self.error, ".0%" if self.quantity == "success" else ".2g")
        said = f"{self.quantity} {sign}{wide} over {self.tasks} tasks, p = {_p(self.p)} ({self.test})"
        return said if self.beyond_noise else f"{said}: may be chance"

    def noise_words(self) -> str:
        """A line on what two runs of one model would differ by."""
        if self.noise is None:
            return "two runs of one model: not known from one attempt a task (--repeat 4 tells)"
        if self.noise == 0:
            return "two runs of one model: not known, the attempts at each task are equal"
        shown = f"{self.noise:.1%}" if self.quantity == "success" else f"{self.noise:.2g}"
        return f"two runs of one model differ by up to {shown}"


def compare(before: Scores, after: Scores, *, seed: int = 0) -> Comparison | None:
    """The comparison over shared tasks; None where they share none."""
    judged = before.tells_success and after.tells_success
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
        total += 2 * variance(float(a.success) if success else scores.worth(a) for a in attempts) / len(attempts)
    return Z * math.sqrt(total) / len(tasks)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001" if value < 1e-4 else f"{value:.4f}"
