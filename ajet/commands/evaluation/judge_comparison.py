"""Judges of the same episodes beside each other: how far they agree, where they differ most, what each takes.

Invariant: agreement, kappa and correlation are over what both decided, and say over how many of how many; no score is
no verdict of either kind. That two judges agree says of neither that it is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from ajet.record.attempts import Attempt
from ajet.record.console import counted, printable
from ajet.record.intervals import kappa, kappa_interval
from ajet.train.accounting import correlated

APART = 5
"""Episodes on the screen that two judges see most differently."""
PLAYED = "as played"


@dataclass(frozen=True, slots=True)
class Taken:
    """One judge's verdicts, and what they took."""

    judge: str
    decided: int
    episodes: int
    reward: float | None
    """Mean over the decided."""
    calls: float
    cost: float
    seconds: float | None
    """Of a verdict, the median; None where it was not asked now and kept no time."""
    failure: str = ""
    """How most often it failed; "" where it did not."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two judges."""

    one: str
    other: str
    both: int
    """Episodes that both decided."""
    agreement: float | None
    """Share of them with the same success (a reward of at least 0.5 where none is said)."""
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    correlation: float | None
    """Of the rewards; None for too few, and where one is always the same."""
    apart: tuple[Apart, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """An episode that two judges see differently."""

    uuid: str
    task: str
    rewards: tuple[float, float]
    reasons: tuple[str, str]


@dataclass(frozen=True, slots=True)
class JudgeComparison:
    """The comparison of all judges."""

    judges: tuple[Taken, ...]
    pairs: tuple[Pair, ...]

    def undecided(self) -> list[Taken]:
        """The judges that decided nothing, the play's own verdicts aside."""
        return [each for each in self.judges if not each.decided and each.judge != PLAYED]


def compared(by_judge: Mapping[str, Sequence[Attempt]]) -> JudgeComparison:
    """Compare the same attempts, in the same order, as each judge has them. What has failed in play is nobody's to
    judge."""
    every = list(zip(*by_judge.values(), strict=True))
    kept = [each for each in every if not all(attempt.failure for attempt in each)]
    columns = dict(zip(by_judge, zip(*kept, strict=True), strict=True)) if kept else dict.fromkeys(by_judge, ())
    return JudgeComparison(
        tuple(_taken(name, attempts) for name, attempts in columns.items()),
        tuple(_pair(one, other, columns[one], columns[other]) for one, other in combinations(columns, 2)),
    )


def _taken(name: str, attempts: Sequence[Attempt]) -> Taken:
    rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
    spent = [attempt.spent for attempt in attempts]
    times = [time for each in spent if (time := each.get("waited", each.get("seconds"))) is not None]
    return Taken(
        name,
        len(rewards),
        len(attempts),
        fmean(rewards) if rewards else None,
        sum(each.get("calls", 0.0) for each in spent),
        sum(each.get("cost", 0.0) for each in spent),
        median(times) if times else None,
        next(iter(Counter(attempt.failure for attempt in attempts if attempt.failure).most_common(1)), ("", 0))[0],
    )


def _pair(one: str, other: str, first: Sequence[Attempt], second: Sequence[Attempt]) -> Pair:
    both = [
        (a, b, a.reward, b.reward)
        for a, b in zip(first, second, strict=True)
        if a.reward is not None and b.reward is not None
    ]
    said = [(_says(a), _says(b)) for a, b, _, _ in both]
    cells = tuple(said.count(each) for each in ((True, True), (True, False), (False, True), (False, False)))
    low, high = kappa_interval(cells) if both else (None, None)
    apart = sorted((each for each in both if each[2] != each[3]), key=lambda each: abs(each[2] - each[3]), reverse=True)
    return Pair(
        one, other, len(both),
        sum(a == b for a, b in said) / len(said) if said else None,
        kappa(cells) if both else None, low, high,
        correlated([(x, y) for _, _, x, y in both]),
        tuple(Apart(a.uuid, a.task, (x, y), (a.reason, b.reason)) for a, b, x, y in apart),
    )  # fmt: skip


def _says(attempt: Attempt) -> bool:
    return attempt.success if attempt.judged else (attempt.reward or 0.0) >= 0.5


def as_json(found: JudgeComparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return asdict(found)


def show(found: JudgeComparison, console: Console) -> None:
    """Show what each took; the pairs; where they differ most."""
    table = _table("judge", "decided", "mean reward", "calls", "cost", "a verdict")
    for each in found.judges:
        table.add_row(
            printable(each.judge), f"{each.decided}/{each.episodes}", _figure(each.reward), f"{each.calls:.0f}",
            f"{each.cost:.4g}", "–" if each.seconds is None else _time(each.seconds),
        )  # fmt: skip
    console.print(table)
    for each in found.undecided():
        why = f": {printable(each.failure)[:300]}" if each.failure else ""
        told = f"{printable(each.judge)}: nothing is known of it: it decided no episode (exit code 1){why}"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    table = _table("judges", "both decided", "agree", "kappa (95 %)", "correlation")
    for pair in found.pairs:
        agree = "–" if pair.agreement is None else f"{pair.agreement:.1%}"
        ends = f" ({pair.kappa_low:.2f} to {pair.kappa_high:.2f})" if pair.kappa_low is not None else ""
        table.add_row(
            printable(f"{pair.one}, {pair.other}"), str(pair.both),
            agree, f"{_figure(pair.kappa)}{ends}", _figure(pair.correlation),
        )  # fmt: skip
    console.print(table)
    for pair in found.pairs:
        if not pair.apart:
            continue
        title = f"{pair.one} and {pair.other} differ at {counted(len(pair.apart), 'episode')}, most at"
        console.print(title, markup=False, highlight=False, soft_wrap=True)
        for seen in pair.apart[:APART]:
            said = (
                f"{reward:g}" + (f" ({reason[:60]})" if reason else "")
                for reward, reason in zip(seen.rewards, seen.reasons, strict=True)
            )
            told = f"  {seen.uuid[:12]}  {seen.task[:24]}  {', '.join(said)}"
            console.print(printable(told), markup=False, highlight=False, soft_wrap=True)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for at, name in enumerate(names):
        table.add_column(name, justify="right" if at else "left", overflow="fold")
    return table


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
