"""Nothing in training gives the held-out sums of the addition task away."""

import sys
from itertools import combinations
from pathlib import Path

from ajet.config import load_experiment
from ajet.task_reader import open_reader

ROOT = Path(__file__).parents[2]


def pairs(reader, split):
    return [frozenset(task.task_id.split("+")) for task in reader.tasks(split)]


def test_no_held_out_sum_is_trained_on_in_either_order():
    reader = open_reader(load_experiment(ROOT / "benchmarks" / "addition" / "addition.yaml"))
    held_out, trained = pairs(reader, "validation"), pairs(reader, "train")
    assert len(held_out) == 32 and len(trained) == 341
    assert set(held_out).isdisjoint(trained)


def test_nor_is_one_of_the_template_that_init_writes():
    reader = open_reader(load_experiment(ROOT / "ajet" / "cli" / "templates" / "math" / "math.yaml"))
    held_out, trained = pairs(reader, "validation"), pairs(reader, "train")
    assert len(held_out) == 32 and len(trained) > 300
    assert set(held_out).isdisjoint(trained)


def test_the_benchmarks_third_split_is_neither_trained_on_nor_looked_at(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    from addition_splits import ThreeSplits

    splits = {split: pairs(ThreeSplits(None), split) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in splits.items()} == {"train": 141, "validation": 32, "test": 200}
    assert all(set(one).isdisjoint(other) for one, other in combinations(splits.values(), 2))
    assert sum(len(set(found)) for found in splits.values()) == 210, "all pairs of numbers from 1 to 20"
