"""What scripts/bench.py keeps of benchmarks, and what it says has moved."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = f"""
import sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from ratios import kept
from pathlib import Path
count = Path(__file__).with_suffix(".count")
turn = int(count.read_text()) if count.exists() else 0
count.write_text(str(turn + 1))
fast = kept("seconds against nothing", 1.0 + 0.1 * turn, at_most=1.05)
kept("only printed", 3)
sys.exit(not fast)
"""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_history", ROOT / "scripts" / "bench.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_history"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_what_was_measured_is_kept_with_machine_and_commit(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bench_a.py").write_text(BENCH)
    assert bench.main(["--folder", str(tmp_path), "--repeat", "2", "--to", str(tmp_path / "kept.json")]) == 1
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["failed"] == ["a"] and kept["machine"]["cores"] and kept["commit"]
    assert [(row["name"], row["values"], row["at_most"]) for row in kept["ratios"]] == [
        ("seconds against nothing", [1.0, 1.1], 1.05),
        ("only printed", [3, 3], None),
    ]


def test_a_device_goes_to_those_that_can_be_told(bench: ModuleType, tmp_path: Path) -> None:
    told = (
        "import sys\nfrom pathlib import Path\nPath(__file__).with_suffix('.told').write_text(' '.join(sys.argv[1:]))\n"
    )
    (tmp_path / "bench_a.py").write_text(f'OPTION = "--device"\n{told}')
    (tmp_path / "bench_b.py").write_text(told)
    assert bench.main(["--folder", str(tmp_path), "--device", "cuda", "--to", str(tmp_path / "kept.json")]) == 0
    assert [(tmp_path / f"bench_{name}.told").read_text() for name in "ab"] == ["--device cuda", ""]
    assert json.loads((tmp_path / "kept.json").read_text())["machine"]["device"] == "cuda"


def test_an_unknown_one_names_those_there_are(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bench_a.py").write_text(BENCH)
    with pytest.raises(SystemExit, match="no such benchmark: b; there are a"):
        bench.main(["--folder", str(tmp_path), "--only", "b"])


@pytest.mark.parametrize(
    "before, now, limit, said",
    [
        ([1.0, 1.1], [1.4, 1.5], {"at_most": 2.0}, "a x: 1.05 to 1.45, +38%: WORSE"),
        ([1.0, 1.1], [1.4, 1.5], {"at_least": 0.5}, "a x: 1.05 to 1.45, +38%: better"),
        ([1.0], [0.8], {}, "a x: 1 to 0.8, -20% (measured once: --repeat 3 tells noise)"),
        ([1.0], [0.95], {}, "1 did not move beyond noise"),
        ([1.0, 1.5], [1.55, 1.7], {}, "1 did not move beyond noise"),  # apart, but each is wider than the step
        ([1.0, 1.3], [1.2, 1.9], {}, "1 did not move beyond noise"),  # they overlap
    ],
)
def test_only_what_moved_beyond_noise_is_said(
    bench: ModuleType, before: list[float], now: list[float], limit: dict[str, float], said: str
) -> None:
    def results(values: list[float], cores: int) -> object:
        return bench.Results("c", "2026-01-01", {"cores": cores}, [], [bench.Ratio("a", "x", values, **limit)])

    lines = list(bench.compared(results(before, 2), results(now, 2)))
    assert said in lines and not any("machine" in line for line in lines)
    assert ("0 did not move beyond noise" in lines) == said.startswith("a x")
    assert "another machine: cores 2 then, 4 now" in list(bench.compared(results(before, 2), results(now, 4)))
