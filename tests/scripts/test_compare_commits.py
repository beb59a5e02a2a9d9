"""Which version is slower: the noise rule, turns of two checkouts, and whose modules each of them imports."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLAYER = """
import ajet, json, sys, time
print(json.dumps("ready"), flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    time.sleep(ajet.SECONDS)
    print(json.dumps([time.perf_counter() - began, 1.0]), flush=True)
"""


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import compare_commits

    return compare_commits


def checkout(folder: Path, seconds: float) -> Path:
    (folder / "ajet").mkdir(parents=True)
    (folder / "ajet/__init__.py").write_text(f"SECONDS = {seconds}\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "ajet"\nversion = "0"\n')
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks/workloads.py").write_text(PLAYER)
    return folder


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ([1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.0], "not slower"),
        ([0.7, 0.71, 0.8, 0.7, 0.6, 0.7, 0.7, 0.7], "not slower"),
        ([1.2, 1.1, 1.3, 1.2, 1.2, 1.15, 1.2, 1.1], "slower"),
        ([1.2, 0.9, 1.3, 0.95, 1.2, 1.15, 1.2, 1.1], "undecided"),  # slower, or noise
        ([1.02, 1.01, 1.02, 1.01, 1.02, 1.01, 1.02, 1.01], "not slower"),  # less than the tolerance
        ([0.5, 1.0, 1.0, 2.0, 0.6, 1.9, 1.0, 1.0], "undecided"),  # a slowdown of a tenth may hide in it
    ],
)
def test_noise_rule_decides_or_says_undecided(compare: ModuleType, now: list[float], verdict: str) -> None:
    assert compare.Comparison.from_turns([1.0] * len(now), now).verdict == verdict


def test_interval_misses_equal_medians_rarely(compare: ModuleType) -> None:
    """By the binomial distribution: 6 turns allow none outside, 20 allow 4; with 5 there is no such interval."""
    assert [compare.count_excluded(turns) for turns in (6, 8, 9, 20)] == [0, 0, 1, 4]
    with pytest.raises(ValueError, match="too few"):
        compare.count_excluded(5)


def test_slower_checkout_is_found_by_its_turns(compare: ModuleType, tmp_path: Path) -> None:
    sides = checkout(tmp_path / "a", 0.01), checkout(tmp_path / "b", 0.05)
    before, now = compare.measure("x", sides, tmp_path, 0.0)
    assert len(before) == len(now) == compare.FEWEST_TURNS
    assert compare.Comparison.from_turns([t[0] for t in before], [t[0] for t in now]).verdict == "slower"
    assert compare.Comparison.from_turns([t[1] for t in before], [t[1] for t in now]).verdict == "not slower"


def test_foreign_modules_and_failures_are_errors(compare: ModuleType, tmp_path: Path) -> None:
    good, bad = checkout(tmp_path / "a", 0.0), checkout(tmp_path / "b", 0.0)
    (bad / "benchmarks/workloads.py").write_text("import ajet.gateway")  # which only the installed version has
    with pytest.raises(compare.WorkloadError, match=r"ajet\.gateway"):
        compare.measure("x", (good, bad), tmp_path, 0.0)
    (bad / "benchmarks/workloads.py").write_text("print('1')")
    with pytest.raises(compare.WorkloadError, match="no module of ours"):
        compare.measure("y", (good, bad), tmp_path, 0.0)


def test_names_are_those_of_the_workloads(compare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import workloads

    assert tuple(workloads.WORKLOADS) == compare.WORKLOADS
    with pytest.raises(SystemExit, match="no such workload: calls"):
        compare.compare_commits("HEAD", ["calls"], seconds=1, results=Path(), description={})
