"""Tests of the table of benchmarks/beside_peers.py and of the task that it gives to other trainers."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from tests.benchmarks.test_bench_limits import loaded


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("beside_peers", monkeypatch)


def run_of(peer: str, seed: int, held_out: dict[int, float], *, startup: float = 5.0) -> dict[str, Any]:
    """A recorded run whose steps cost a processor second each."""
    steps = [
        {
            "step": step,
            "processor": startup + step,
            "held_out": {"reward": held_out[step]} if step in held_out else None,
        }
        for step in range(1, 17)
    ]
    return {"peer": peer, "seed": seed, "versions": {peer: "1"}, "startup_processor": startup, "steps": steps}


def test_target_is_interpolated_between_checkpoints(bench):
    assert bench.processor_to_target(run_of("trl", 0, {8: 0.7, 10: 0.9, 16: 1.0})) == pytest.approx(9.0)
    assert bench.processor_to_target(run_of("trl", 0, {2: 0.85})) == 2.0
    assert bench.processor_to_target(run_of("trl", 0, {8: 0.7, 16: 0.79})) is None


def test_table_compares_with_ajet_and_names_missing_runs(bench):
    rows = [run_of("ajet", seed, {8: 0.7, 10: 0.9, 16: 0.9 + seed / 100}) for seed in range(3)]
    rows += [run_of("trl", seed, {16: 0.8}, startup=11.0) for seed in range(3)]
    rows += [run_of("verl", 0, {16: 0.5})]
    ajet, trl, verl = list(bench.table_lines(rows))[2:]
    assert "0.910 ± 0.025 (0.900, 0.910, 0.920) | 9.0 ± 0.0 | 1.00" in ajet
    assert "| 16.0 ± 0.0 | 1.78 | 1.00 | 11.0 | 1.93 |" in trl
    assert "0 of 1 runs reach it" in verl


def test_other_trainers_get_the_tasks_of_the_template(bench, monkeypatch):
    prices = loaded("peers/prices", monkeypatch)
    rows = prices.read_rows("train", 1)
    assert rows != prices.read_rows("train", 2) and rows == prices.read_rows("train", 1)
    assert prices.read_rows("validation", 1) == prices.read_rows("validation", 2)
    row = rows[0]
    item = row["prompt"][1]["content"].split()[-2]
    assert prices.look_up(json.loads(row["prices"]), json.dumps({"item": item})) == str(row["answer"])
    assert prices.score_reply(f"\\boxed{{{row['answer']}}}", row["answer"]) == 1.0
    assert prices.score_reply(str(row["answer"]), row["answer"]) == 0.0
