"""Compares judges on the same episodes: agreement, largest differences, cost.

Invariant: agreement, Cohen's kappa and correlation are over the episodes that both judges decided, and their number is
shown. A missing score is no verdict. Agreement of two judges does not mean that either is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from ajet.record.attempts import AttemptRecord
from ajet.record.console import console, counted, format_number, make_table, print_line, printable
from ajet.record.intervals import kappa, kappa_interval
from ajet.train.accounting import correlate

DIFFERENCES_SHOWN = 5
"""Number of episodes shown with the largest differences."""
PLAYED = "as played"


@dataclass(frozen=True, slots=True)
class JudgeSummary:
    """How one judge decided all attempts: number of scores, mean reward, requests, cost and time."""

    judge: str
    decided: int
    episodes: int
    reward: float | None
    """Mean over the decided episodes."""
    calls: float
    cost: float
    seconds: float | None
    """Median seconds per verdict. None if unknown."""
    failure: str = ""
    """Most frequent failure, or "" without a failure."""


@dataclass(frozen=True, slots=True)
class JudgePair:
    """Agreement, Cohen's kappa and correlation of two judges over the episodes that both decided."""

    one: str
    other: str
    both: int
    """Number of episodes decided by both judges."""
    agreement: float | None
    """Share of these episodes with the same success. Without a verdict on success, a reward of at least 0.5 counts as
    success.
    """
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    correlation: float | None
    """Correlation of the rewards. None for too few episodes, or if one side is constant."""
    apart: tuple[JudgeDifference, ...]


@dataclass(frozen=True, slots=True)
class JudgeDifference:
    """An episode to which two judges gave different rewards."""

    uuid: str
    task: str
    rewards: tuple[float, float]
    reasons: tuple[str, str]


@dataclass(frozen=True, slots=True)
class JudgeComparison:
    """The comparison of several judges on the same attempts: one summary each, and one entry for each pair."""

    judges: tuple[JudgeSummary, ...]
    pairs: tuple[JudgePair, ...]

    def list_undecided(self) -> list[JudgeSummary]:
        """Return the further judges that decided no attempt. The evaluation's own judge, "as played", is left out."""
        return [judge for judge in self.judges if not judge.decided and judge.judge != PLAYED]


def compare_judges(by_judge: Mapping[str, Sequence[AttemptRecord]]) -> JudgeComparison:
    """Compare judges over the attempts that at least one of them could judge.

    Attempts whose workflow failed have a failure under every judge, and are left out.

    Args:
        by_judge: The attempts under each judge, in the same order for all.
    """
    attempts_by_position = list(zip(*by_judge.values(), strict=True))
    compared = [attempts for attempts in attempts_by_position if not all(attempt.failure for attempt in attempts)]
    columns = dict(zip(by_judge, zip(*compared, strict=True), strict=True)) if compared else dict.fromkeys(by_judge, ())
    return JudgeComparison(
        tuple(_summarize_judge(name, attempts) for name, attempts in columns.items()),
        tuple(
            _compare_pair(first, second, columns[first], columns[second]) for first, second in combinations(columns, 2)
        ),
    )


def _summarize_judge(name: str, attempts: Sequence[AttemptRecord]) -> JudgeSummary:
    """Return how many attempts a judge decided, with mean reward, cost, and its most frequent failure."""
    rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
    spent = [attempt.spent for attempt in attempts]
    times = [time for numbers in spent if (time := numbers.get("waited", numbers.get("seconds"))) is not None]
    return JudgeSummary(
        name,
        len(rewards),
        len(attempts),
        fmean(rewards) if rewards else None,
        sum(numbers.get("calls", 0.0) for numbers in spent),
        sum(numbers.get("cost", 0.0) for numbers in spent),
        median(times) if times else None,
        next(iter(Counter(attempt.failure for attempt in attempts if attempt.failure).most_common(1)), ("", 0))[0],
    )


def _compare_pair(one: str, other: str, first: Sequence[AttemptRecord], second: Sequence[AttemptRecord]) -> JudgePair:
    """Compare two judges over the attempts that both scored: agreement, Cohen's kappa, correlation, differences.

    Args:
        one: Name of the first judge.
        other: Name of the second judge.
        first: The attempts under the first judge.
        second: The same attempts under the second judge.
    """
    both = [
        (a, b, a.reward, b.reward)
        for a, b in zip(first, second, strict=True)
        if a.reward is not None and b.reward is not None
    ]
    successes = [(_is_success(a), _is_success(b)) for a, b, _, _ in both]
    cells = tuple(successes.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False)))
    low, high = kappa_interval(cells) if both else (None, None)
    differences = sorted(
        (entry for entry in both if entry[2] != entry[3]), key=lambda entry: abs(entry[2] - entry[3]), reverse=True
    )
    return JudgePair(
        one, other, len(both),
        sum(a == b for a, b in successes) / len(successes) if successes else None,
        kappa(cells) if both else None, low, high,
        correlate([(x, y) for _, _, x, y in both]),
        tuple(JudgeDifference(a.uuid, a.task, (x, y), (a.reason, b.reason)) for a, b, x, y in differences),
    )  # fmt: skip


def _is_success(attempt: AttemptRecord) -> bool:
    """Return True if the judge called the attempt a success, or else gave at least half of the reward 1."""
    return attempt.success if attempt.judged else (attempt.reward or 0.0) >= 0.5


def print_comparison(comparison: JudgeComparison) -> None:
    """Print a table of judges, a table of pairs, and the largest differences."""
    table = make_table("judge", "decided", "mean reward", "calls", "cost", "a verdict")
    for judge in comparison.judges:
        table.add_row(
            printable(judge.judge), f"{judge.decided}/{judge.episodes}", format_number(judge.reward),
            f"{judge.calls:.0f}", f"{judge.cost:.4g}", "–" if judge.seconds is None else _format_time(judge.seconds),
        )  # fmt: skip
    console.print(table)
    for undecided in comparison.list_undecided():
        cause = f": {printable(undecided.failure)[:300]}" if undecided.failure else ""
        print_line(
            f"{printable(undecided.judge)}: no result: the judge returned no score for any episode (exit code 1){cause}"
        )
    table = make_table("judges", "both decided", "agree", "kappa (95 %)", "correlation")
    for pair in comparison.pairs:
        ends = f" ({pair.kappa_low:.2f} to {pair.kappa_high:.2f})" if pair.kappa_low is not None else ""
        table.add_row(
            printable(f"{pair.one}, {pair.other}"), str(pair.both),
            format_number(pair.agreement, ".1%"), f"{format_number(pair.kappa)}{ends}", format_number(pair.correlation),
        )  # fmt: skip
    console.print(table)
    for pair in comparison.pairs:
        if not pair.apart:
            continue
        title = f"{pair.one} and {pair.other} differ in {counted(len(pair.apart), 'episode')}; the largest differences:"
        print_line(title)
        for episode in pair.apart[:DIFFERENCES_SHOWN]:
            verdicts = (
                f"{reward:g}" + (f" ({reason[:60]})" if reason else "")
                for reward, reason in zip(episode.rewards, episode.reasons, strict=True)
            )
            line = f"  {episode.uuid[:12]}  {episode.task[:24]}  {', '.join(verdicts)}"
            print_line(printable(line))


def _format_time(seconds: float) -> str:
    """Return seconds as text, in ms below 0.1 s."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
