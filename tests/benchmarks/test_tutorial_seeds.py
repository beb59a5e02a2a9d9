"""The tutorials' tables are those of the recorded runs, three seeds each."""

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "tutorial_seeds.jsonl"


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def run(**more: Any) -> dict[str, Any]:
    """Return a recorded run with two validations of a reward between 0 and 1."""
    held_out = {
        "held_out": {"0": 0.25, "4": 0.75},
        "held_out_error": {"4": 0.125},
        "held_out_success": {"0": 0, "4": 0},
    }
    cost = {"training_reward": [0.1, 0.2, 0.3, 0.4], "processor_s": 60.4, "wall_s": 90}
    return {"example": "x", "stage": "rl", "seed": 1, "held_out_tasks": 8, **held_out, **cost, **more}


def test_rewards_have_intervals_and_quarters() -> None:
    from tutorial_seeds import format_table

    assert format_table([run()]).splitlines()[-1] == "| 1 | 0.25 | 0.75 ± 0.12 | 0.10, 0.20, 0.30, 0.40 | 60 | 2 |"


def test_success_is_a_share_with_its_interval() -> None:
    from tutorial_seeds import format_table

    success = {"0": 0.25, "4": 0.75}
    row = run(held_out_success=success, success_low={"0": 0.1, "4": 0.6}, success_high={"0": 0.4, "4": 0.9})
    assert "| 25% (10% to 40%) | 75% (60% to 90%) |" in format_table([row])


def test_a_table_has_one_unit() -> None:
    from tutorial_seeds import format_table

    share = run(held_out_success={"0": 0.25, "4": 0.75}, success_low={}, success_high={})
    assert "| 0.25 | 0.75 ± 0.12 |" in format_table([share, run(seed=2)]).splitlines()[2]


def test_tutorials_show_the_recorded_runs() -> None:
    from tutorial_seeds import SEEDS, TUTORIALS, format_table, read_rows

    rows = [row for row in read_rows(RESULTS) if row["stage"] == "rl" and row["example"] in TUTORIALS]
    for name in {row["example"] for row in rows}:
        runs = [row for row in rows if row["example"] == name]
        assert [row["seed"] for row in runs] == [*SEEDS]
        page = (ROOT / "tutorial" / TUTORIALS[name].yaml).with_name("README.md")
        assert format_table(runs) in page.read_text(encoding="utf-8"), name
