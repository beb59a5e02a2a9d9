"""Runs benchmarks, keeps their ratios with machine and commit, and says what moved since an earlier run.

    python scripts/bench.py                               all, once
    python scripts/bench.py --only merge start --repeat 3 some, three times each
    python scripts/bench.py --against FILE                and compared with what an earlier run kept
    python scripts/bench.py --with FILE --against FILE    two that were kept, nothing run
    python scripts/bench.py --device cuda                 for those that can be told; others choose as a run does
    python scripts/bench.py --commit HEAD~1               is this tree slower than that: compare_commits.py

Invariant: what is kept is what was measured, as benchmarks/ratios.py wrote it down, values of every repeat apart. A
number has moved where all its values lie on one side of all the earlier ones and the medians differ by more than the
noise: the larger spread of the two runs, `ALONE` where one of them measured it once. Exit code: 1 where a benchmark
failed or missed a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ALONE = 0.1
"""How far a number that was measured once may move by noise."""


@dataclass
class Ratio:
    """One number of a benchmark, a value a repeat."""

    bench: str
    name: str
    values: list[float] = field(default_factory=list)
    at_most: float | None = None
    at_least: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def noise(self) -> float:
        """As a share of the median."""
        if len(self.values) < 2:
            return ALONE
        return (max(self.values) - min(self.values)) / abs(self.median or 1.0)


@dataclass
class Results:
    """Of one run of this script."""

    commit: str
    date: str
    machine: dict[str, Any]
    failed: list[str] = field(default_factory=list)
    """Benchmarks that did not run to their end, or missed a limit."""
    ratios: list[Ratio] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Results:
        raw = json.loads(file.read_text())
        return cls(**{**raw, "ratios": [Ratio(**row) for row in raw["ratios"]]})

    def by_name(self) -> dict[tuple[str, str], Ratio]:
        return {(ratio.bench, ratio.name): ratio for ratio in self.ratios}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="as in bench_NAME.py; with --commit: of workloads.py")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--to", type=Path, help="default: benchmarks/results/DATE-COMMIT.json")
    parser.add_argument("--with", dest="kept", type=Path, help="results that were kept, instead of a run")
    parser.add_argument("--against", type=Path, help="results of an earlier run")
    parser.add_argument("--device", help="handed to each benchmark that has --device")
    parser.add_argument("--commit", help="compare this working tree with that commit instead, both in turns")
    parser.add_argument("--seconds", type=float, default=15.0, help="with --commit: of a workload, per version")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.only = [name for names in options.only or () for name in names.split(",")]
    if options.commit is not None:
        from compare_commits import compare_commits

        date = datetime.now(UTC).isoformat(timespec="seconds")
        return compare_commits(
            options.commit, options.only, seconds=options.seconds, results=options.to or options.folder / "results",
            description={"date": date, "commit": commit_of(ROOT), "machine": machine()},
        )  # fmt: skip
    if options.kept is not None:
        results = Results.read(options.kept)
    else:
        results = measured(options.folder, options.only, options.repeat, options.device)
        file = options.to or options.folder / "results" / f"{results.date[:10]}-{results.commit}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(results), indent=1) + "\n")
        print(f"\nkept in {file}")
    if options.against is not None:
        print("\n".join(compared(Results.read(options.against), results)))
    if results.failed:
        print(f"failed, or missed a limit: {', '.join(results.failed)}")
    return int(bool(results.failed))


def measured(folder: Path, only: Sequence[str] | None, repeat: int, device: str | None = None) -> Results:
    """Run them, one after the other, as often as asked; what they print is seen."""
    found = {file.stem.removeprefix("bench_"): file for file in sorted(folder.glob("bench_*.py"))}
    if unknown := sorted(set(only or ()) - set(found)):
        raise SystemExit(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(found)}")
    results = Results(commit_of(ROOT), datetime.now(UTC).isoformat(timespec="seconds"), machine())
    if device is not None:
        results.machine["device"] = device
    failed = set()
    with tempfile.TemporaryDirectory() as kept:
        lines = Path(kept, "ratios.jsonl")
        for name in only or found:
            told = ["--device", device] if device and '"--device"' in found[name].read_text() else []
            for _ in range(repeat):
                print(f"== {name}", flush=True)
                environment = {**os.environ, "AJET_RATIOS": str(lines)}
                if subprocess.run([sys.executable, str(found[name]), *told], env=environment).returncode:
                    failed.add(name)
        rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    ratios: dict[tuple[str, str], Ratio] = {}
    for row in rows:
        value, key = row.pop("value"), (row["bench"], row["name"])
        ratios.setdefault(key, Ratio(**row)).values.append(value)
    results.failed, results.ratios = sorted(failed), list(ratios.values())
    return results


def compared(before: Results, now: Results) -> Iterator[str]:
    """Lines: what moved beyond noise, what did not, what only one of them has."""
    yield f"{now.commit} of {now.date[:10]} against {before.commit} of {before.date[:10]}"
    for fact in sorted({*before.machine, *now.machine} - {"load"}):
        if before.machine.get(fact) != now.machine.get(fact):
            yield f"another machine: {fact} {before.machine.get(fact)} then, {now.machine.get(fact)} now"
    earlier, later = before.by_name(), now.by_name()
    still = 0
    for key in sorted(earlier.keys() & later.keys()):
        old, new = earlier[key], later[key]
        apart = min(new.values) > max(old.values) or max(new.values) < min(old.values)
        change = new.median / old.median - 1 if old.median else float("inf")
        if not apart or abs(change) <= max(old.noise, new.noise):
            still += 1
            continue
        once = " (measured once: --repeat 3 tells noise)" if min(len(old.values), len(new.values)) < 2 else ""
        yield f"{' '.join(key)}: {old.median:.4g} to {new.median:.4g}, {change:+.0%}{direction(new, change)}{once}"
    yield f"{still} did not move beyond noise"
    for what, keys in (("only then", earlier.keys() - later.keys()), ("only now", later.keys() - earlier.keys())):
        if keys:
            yield f"{what}: {', '.join(' '.join(key) for key in sorted(keys))}"


def direction(ratio: Ratio, change: float) -> str:
    """Whether that is good, where a limit tells."""
    if ratio.at_most is None and ratio.at_least is None:
        return ""
    return ": better" if (change < 0) == (ratio.at_most is not None) else ": WORSE"


def commit_of(root: Path) -> str:
    """Short, with a + where something is not committed; "unknown" outside git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown"
    return commit + "+" * bool(git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results"))


def machine() -> dict[str, Any]:
    """What numbers depend on."""
    from importlib.metadata import version

    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    processor = names[0].partition(":")[2].strip() if names else platform.processor()
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
