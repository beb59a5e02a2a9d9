"""`ajet compare`: groups of recorded runs side by side, with intervals over seeds and over tasks."""

import csv
import json
from pathlib import Path

import pytest

from ajet_viewer.comparison.differences import compare_groups, welch_error
from ajet_viewer.comparison.groups import read_comparison
from tests.support.ajet_process import ajet
from tests.support.viewer_fixtures import write_seed_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three seeds of a weak and of a strong algorithm."""
    for seed, (weak, strong) in enumerate([(1, 7), (2, 8), (3, 8)], 1):
        write_seed_run(tmp_path / f"weak-{seed}", seed, weak)
        write_seed_run(tmp_path / f"strong-{seed}", seed, strong)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(root: Path, columns: int) -> None:
    done = ajet(
        "compare", "weak_with_a_long_name=weak-*", "strong=strong-1,strong-2,strong-3", "--target", "0.9",
        "--exp-dir", str(root), cwd=root, COLUMNS=str(columns),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    tables, _, sentence = done.stdout.partition("strong compared with weak_with_a_long_name: ")
    assert max(map(len, tables.splitlines())) <= columns, done.stdout
    rows = [line.split() for line in tables.splitlines()]
    (weak,) = (row for row in rows if "25.0%" in row)
    assert weak[1:] == ["3", "2", "0.146", "±", "0.18", "25.0%", "±", "31.1%", "3", "runs", "2.0", "80"]
    assert ["strong", "2", "of", "3", "2", "2.0", "80"] in rows
    assert ["0", "of", "3", "–", "–", "–"] in [row[1:] for row in rows]
    assert (
        "success +70.8% ± 31% over 8 tasks, p = 0.016 (exact permutation test); over 3 seeds +70.8% ± 17.9%" in sentence
    )
    assert "may be chance" not in sentence


@pytest.mark.slow
def test_files_hold_every_recorded_step(root: Path) -> None:
    command = ["compare", "weak-1", "strong-1", "--json", "--csv", "out.csv", "--png", "out.png"]
    done = ajet(*command, "--exp-dir", str(root), cwd=root)
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert [group["held_out"] for group in found["groups"]] == [1 / 8, 7 / 8] and found["quantity"] == "success"
    assert found["groups"][0]["interval_over"] == "8 tasks" and not found["differences"][0]["real"]
    with (root / "out.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "strong-1"]
    assert [(row["step"], row["minutes"], row["processor_seconds"]) for row in rows] == [
        ("1", "0.5", "40.0"), ("1", "1.0", "40.0"), ("2", "1.5", "80.0"), ("2", "2.0", "80.0"),
    ]  # fmt: skip
    assert [row["held_out_success"] for row in rows] == ["", "0.0", "", "0.875"]
    assert (root / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_unknown_runs_are_one_screen(root: Path) -> None:
    for named, message in (("weak-7", "There is no run named weak-7"), ("x=nothing-*", "No run matches nothing-*")):
        done = ajet("compare", "weak-1", named, "--exp-dir", str(root), cwd=root)
        assert done.returncode == 2 and message in done.stdout and "Traceback" not in done.stdout, done.stdout


def test_one_seed_proves_nothing_about_others(root: Path) -> None:
    (difference,) = compare_groups(read_comparison(["weak-1", "strong-1"], root))
    assert difference.by_task is not None and difference.by_task.is_beyond_noise and not difference.is_real
    assert "other seeds: unknown" in difference.describe()


def test_other_tasks_are_not_paired(root: Path) -> None:
    for seed in (1, 2):
        write_seed_run(root / f"other-{seed}", seed, 6 + seed, question="How much is")
    (difference,) = compare_groups(read_comparison(["weak-*", "other-*"], root))
    assert difference.by_task is None and difference.difference == pytest.approx(7.5 / 8 - 2 / 8)
    assert difference.describe().startswith("other-* compared with weak-*: different tasks; over 3 and 2 runs")


def test_interval_over_runs_is_by_welch() -> None:
    # shares of variance 1/3 and 4/3: 25/9 / (1/18 + 16/18) = 2.94 degrees, rounded down to 2; t = 4.303
    assert welch_error([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(4.303 * (5 / 3) ** 0.5)
    assert welch_error([1.0], [2.0, 4.0]) is None and welch_error([1.0, 1.0], [2.0, 2.0]) is None
