"""`make bench ARGS="--commit COMMIT"`: is this working tree slower than that commit, by the workloads of benchmarks/?

Both versions stay ready at the same time and take turns (ABBA...), so that other work on the machine meets both. Each
turn of a pair gives one ratio, now to before, by the clock and by processor time. The noise rule over these ratios:

    slower      the median is above 1 + TOLERANCE, and the interval of the median lies above 1
    not slower  the interval of the median ends below 1 + EXCLUDED
    undecided   neither: play more turns, on a quieter machine

The interval is that of order statistics: a median of 1 lies below it in at most LEVEL of all runs. Each version runs
in the same Python environment, with the modules of its own checkout alone (same_as_parts/checkout.py).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from same_as_parts.checkout import Checkout, RunError
from same_as_parts.command import add_worktree

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ("call", "stream", "episode", "step", "merge", "help", "resume")
"""Names of benchmarks/workloads.py."""
TOLERANCE, EXCLUDED, LEVEL = 0.03, 0.10, 0.02
FEWEST_TURNS = 6
"""Pairs of turns: with fewer the interval cannot reach LEVEL."""
CLOCKS = ("clock", "processor")


@dataclass(frozen=True)
class Comparison:
    """The ratios of one workload by one clock, and what the noise rule says of them."""

    ratio: float
    """Median of now to before."""
    low: float
    high: float
    """The interval of the median."""

    @classmethod
    def from_turns(cls, before: Sequence[float], now: Sequence[float]) -> Comparison:
        """Compare turns, pair by pair."""
        ratios = sorted(new / old for old, new in zip(before, now, strict=True))
        cut = count_excluded(len(ratios))
        return cls(statistics.median(ratios), ratios[cut], ratios[-1 - cut])

    @property
    def verdict(self) -> str:
        """Return slower, not slower or undecided."""
        if self.low > 1 and self.ratio > 1 + TOLERANCE:
            return "slower"
        return "not slower" if self.high < 1 + EXCLUDED else "undecided"

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}): {self.verdict}"


def count_excluded(turns: int) -> int:
    """Return how many of the smallest, and of the largest, ratios lie outside the interval of the median."""
    below, excluded = 0.0, -1
    while below + math.comb(turns, excluded + 1) / 2**turns <= LEVEL:
        excluded += 1
        below += math.comb(turns, excluded) / 2**turns
    if excluded < 0:
        raise ValueError(f"{turns} turns are too few, at least {FEWEST_TURNS} are needed")
    return excluded


def compare_commits(
    commit: str, only: Sequence[str], *, seconds: float, results: Path, description: dict[str, Any]
) -> int:
    """Compare this working tree with a commit; print and store what was found.

    Args:
        only: Names of WORKLOADS; empty for all.
        seconds: Time of the turns of a workload, per version.
        results: Folder that gets a line per workload in NAME.jsonl.
        description: What each line says of date, commit and machine.

    Returns:
        1 if a workload is slower or did not run, else 0.
    """
    if unknown := sorted(set(only) - set(WORKLOADS)):
        raise SystemExit(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "--verify", "--quiet", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise SystemExit(f"there is no commit {commit}")
    signal.signal(signal.SIGTERM, _leave)
    verdicts: dict[str, list[str]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ajet-bench-") as folder,
        add_worktree(found.stdout.strip(), Path(folder) / "before") as before,
    ):
        for name in only or WORKLOADS:
            try:
                turns = measure(name, (before, ROOT), Path(folder), seconds)
            except WorkloadError as error:
                print(f"{name}: did not run\n{error}", flush=True)
                verdicts.setdefault("failed", []).append(name)
                continue
            row: dict[str, Any] = {**description, "against": found.stdout.strip(), "turns": len(turns[0])}
            for at, clock in enumerate(CLOCKS):
                sides = [[turn[at] for turn in side] for side in turns]
                comparison = Comparison.from_turns(*sides)
                before_s, now_s = map(statistics.median, sides)
                print(f"{name:8} {clock:10} {before_s:.3f} s, now {now_s:.3f} s: {comparison}", flush=True)
                verdicts.setdefault(comparison.verdict, []).append(f"{name} ({clock})")
                row[clock] = {
                    "verdict": comparison.verdict, "ratio": round(comparison.ratio, 4),
                    "interval": [round(comparison.low, 4), round(comparison.high, 4)],
                    "before_s": [round(each, 4) for each in sides[0]], "now_s": [round(each, 4) for each in sides[1]],
                }  # fmt: skip
            results.mkdir(parents=True, exist_ok=True)
            with (results / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
    for verdict in ("slower", "failed", "undecided", "not slower"):
        if verdict in verdicts:
            print(f"{verdict}: {', '.join(verdicts[verdict])}")
    return int(bool(verdicts.keys() & {"slower", "failed"}))


class WorkloadError(Exception):
    """A version did not play a workload; the text is what it printed last."""


def measure(name: str, sides: tuple[Path, Path], folder: Path, seconds: float) -> tuple[list[Any], list[Any]]:
    """Return the (clock, processor) seconds of each turn, for each of two checkouts."""
    with (
        version(name, sides[0], sides[1], folder / f"{name}-0") as before,
        version(name, sides[1], sides[0], folder / f"{name}-1") as now,
    ):
        players, turns, began = (before, now), ([], []), time.monotonic()
        while len(turns[0]) < FEWEST_TURNS or time.monotonic() - began < 2 * seconds:
            for side in (0, 1) if len(turns[0]) % 2 == 0 else (1, 0):
                turns[side].append(players[side].play_turn())
    return turns


@dataclass
class Version:
    """A process that plays a workload with the code of one checkout."""

    process: subprocess.Popen[str]
    log: Path

    def play_turn(self) -> list[float]:
        """Return the seconds of one turn, by the clock and of processor time."""
        assert self.process.stdin is not None
        try:
            print("turn", file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkloadError(self.log.read_text()[-3000:]) from None
        return self.read()

    def read(self) -> Any:
        """Return what it prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkloadError(self.log.read_text()[-3000:])
        return json.loads(line)


@contextmanager
def version(name: str, code: Path, other: Path, folder: Path) -> Iterator[Version]:
    """Yield a version that is ready for its first turn.

    It runs the workloads of its own checkout; a copy of this tree's, which is printed, where its own has none.
    """
    checkout = Checkout(name, code, folder / "imports", [other])
    benchmarks = code / "benchmarks"
    if not (benchmarks / "workloads.py").exists():
        print(f"{name}: {code.name} has no workloads and plays those of this tree", flush=True)
        benchmarks = shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    env = {**checkout.environment(), "TOKENIZERS_PARALLELISM": "false"}
    env["PYTHONPATH"] += os.pathsep + str(benchmarks)
    (folder / "work").mkdir()
    with (folder / "log").open("w") as log, subprocess.Popen(
        [sys.executable, "-m", "workloads", name, str(folder / "work")],
        cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            played = Version(process, folder / "log")
            played.read()
            try:
                checkout.check_modules()
            except RunError as error:
                raise WorkloadError(str(error)) from error
            yield played
        finally:
            process.stdin.close()


def _leave(number: int, frame: object) -> None:
    """Leave the blocks that clean up."""
    raise SystemExit(128 + number)
