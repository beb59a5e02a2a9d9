"""What benchmarks/bench_addition.py counts as training, and how it chooses among settings."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ajet.config import load_experiment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("bench_addition", ROOT / "benchmarks" / "bench_addition.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_loading_and_validations_are_no_training(bench):
    run, clock = bench.Run("a", [], 1), bench.Clock()
    printed = [
        ("embedded:smollm2-135m trains 134.5M weights in bfloat16 on cpu", 9.0),
        ("step    0/2  held out: reward 0.250 ± 0.159 (32 of 32 scored), success 25% (32 tasks, 3.0 s)", 14.0),
        ("step    1/2  reward 0.062 over 64 of 64  grad 0.99  34.5 s (rollout 14.9, update 19.6)", 22.0),
        ("            What is 6 + 2? → 6 + 2 = 8", 22.5),
        ("step    2/2  no episode was scored  64 failed  no training signal (equal rewards)", 30.0),
        ("step    2/2  held out: reward 0.812 ± 0.159 (32 of 32 scored), success 81% (32 tasks, 3.0 s)", 35.0),
    ]
    told = [clock.see(line, used, run) for line, used in printed]
    assert told == [False, True, True, False, True, True]
    assert run.accuracies == [(0, 0.0, 0.25), (2, 16.0, 0.812)] and run.rewards == [0.062, 0.0]
    assert clock.training == run.processor_s == 16.0
    assert run.time_to(0.8) == 16.0 and run.time_to(0.9) == math.inf


def test_half_of_the_settings_get_twice_the_seeds_and_nothing_is_played_twice(bench):
    played = []

    def play(run):
        played.append((run.name, run.seed))
        run.accuracies = [(0, 0.0, 0.2), (5, 10.0 * int(run.name) + run.seed, 0.9 if run.name != "1" else 0.3)]
        return run

    done = [play(bench.Run("3", [], 1))]
    runs = bench.swept({name: () for name in "1234"}, play, done, 0.8)
    assert sorted(played) == sorted(set(played)) and len(runs) == len(played)
    assert played[1:] == [("1", 1), ("2", 1), ("4", 1), ("2", 2), ("3", 2), ("2", 3), ("2", 4)]
    rows = list(bench.table(runs, 0.8))
    assert rows[2].startswith("| 2 | 4 | 22 (21 to 24) | 0.90") and rows[-1].startswith("| 1 | 1 | never | 0.30")


def test_of_runs_that_did_not_all_reach_it_the_table_says_how_many(bench, tmp_path):
    one, other = bench.Run("a", ["x=1"], 1, [(2, 50.0, 0.81)], [0.5], 50.0, 0.9), bench.Run("a", ["x=1"], 2, test=0.8)
    third = bench.Run("a", ["x=1"], 3, [(2, 60.0, 0.81)], stopped="held out 0.81")
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(bench.asdict(run)) + "\n" for run in (one, other, third)))
    runs = bench.read(file)
    assert runs == [one, other, third] and bench.read(tmp_path / "none.jsonl") == []
    assert list(bench.table(runs, 0.8))[2] == (
        "| a | 3 | 60 (50 to not reached), 2 of 3 | 0.81, 0.00, 0.81 | 0.850 (0.800), 1 of 2 at 0.85 |"
    )


def test_each_setting_of_the_grid_is_one(bench):
    named = dict(override.split("=") for overrides in bench.GRID.values() for override in overrides)
    experiment = load_experiment(bench.ADDITION, overrides=[f"{key}={value}" for key, value in named.items()])
    told = experiment.ajet.model_dump()
    for key, value in named.items():
        at = told
        for part in key.split("."):
            at = at[part]
        assert str(at).lower() == value or float(at) == float(value), key


@pytest.mark.extra_slow
def test_a_run_of_one_step_with_its_test_split_is_kept(tmp_path):
    tiny = ["model.path=embedded:tiny-tools", "trainer_common.total_training_steps=1", "data.train_batch_size=2"]
    settings = [argument for setting in tiny for argument in ("--set", setting)]
    out, record = tmp_path / "runs.jsonl", ROOT / "benchmarks" / "addition" / "launcher_record"
    before = sorted(record.rglob("*"))
    command = [sys.executable, "benchmarks/bench_addition.py", "--test", "--every", "1", "--out", str(out), *settings]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr  # nothing is learned in a step: the limit is missed
    (row,) = map(json.loads, out.read_text().splitlines())
    assert [step for step, _, _ in row["accuracies"]] == [0, 1] and row["accuracies"][0][1] == 0
    assert row["processor_s"] > 0 and row["stopped"] is None and 0 <= row["test"] <= 1
    assert "inf processor seconds to 0.8" in done.stdout
    assert sorted(record.rglob("*")) == before, "a benchmark leaves nothing beside the addition task"
