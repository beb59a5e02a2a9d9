"""A sandbox's start against a bare `python -c pass` of the same interpreter: at most 1.5 times; a warm call: at most
0.25 times.

A start is from nothing to a resident that says it is there; the same with a first call's answer is printed with it.
They are taken in turns, so that whatever else the machine does meets all; ratios are those of the medians. Exits 1
above a limit.

    python benchmarks/bench_sandbox.py [--runs 25] [--mechanism bubblewrap]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import kept as held

from ajet.schema.sandbox import Limits
from ajet_sandbox.choose import open_sandbox
from ajet_sandbox.interpreter import find_own_interpreter
from ajet_sandbox.warm import WarmSandbox

START, WARM = 1.5, 0.25


def seconds(work: Callable[[], object]) -> float:
    """Wall time."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def calls(box: WarmSandbox, *, keep: bool) -> float:
    """The median of eight."""
    return statistics.median(seconds(lambda: box.python("pass", keep=keep)) for _ in range(8))


def main() -> int:
    """Measure, print, and judge. The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--mechanism", default="bubblewrap", choices=["bubblewrap", "landlock", "none"])
    parser.add_argument(
        "--python", help="an interpreter other than this one's own", default=find_own_interpreter().path
    )
    given = parser.parse_args()
    limits = Limits()
    times: dict[str, list[float]] = {name: [] for name in ("bare", "least", "start", "first", "warm", "kept")}
    for run in range(-2, given.runs):
        bare = seconds(lambda: subprocess.run([given.python, "-c", "pass"], check=True, env={}))
        least = seconds(lambda: subprocess.run([given.python, "-I", "-S", "-c", "pass"], check=True, env={}))
        began = time.perf_counter()
        box = open_sandbox(given.mechanism, limits, python=given.python)
        start = time.perf_counter() - began
        box.python("pass")
        first = time.perf_counter() - began
        warm, kept = calls(box, keep=False), calls(box, keep=True)
        box.close()
        if run >= 0:  # the first ones fill caches
            for name, took in zip(times, (bare, least, start, first, warm, kept), strict=True):
                times[name].append(took)
    bare = statistics.median(times["bare"])
    words = {
        "bare": "python -c pass", "least": "python -I -S -c pass", "start": "start", "first": "start and a call",
        "warm": "warm call", "kept": "warm call that keeps state",
    }  # fmt: skip
    for name, took in times.items():
        quarters = statistics.quantiles(took, n=4)
        middle = statistics.median(took)
        print(f"{words[name]:<27}{middle * 1000:7.2f} ms  (middle half {quarters[0] * 1000:.2f} to "
              f"{quarters[2] * 1000:.2f}, {given.runs} runs)  ratio {middle / bare:.2f}")  # fmt: skip
    start, warm = statistics.median(times["start"]) / bare, statistics.median(times["warm"]) / bare
    print(f"{given.mechanism}: start {start:.2f} (at most {START}), warm call {warm:.2f} (at most {WARM})")
    quick = held("start against a bare interpreter", start, at_most=START)
    return int(not (held("warm call against a bare interpreter", warm, at_most=WARM) and quick))


if __name__ == "__main__":
    sys.exit(main())
