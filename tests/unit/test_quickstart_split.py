"""The quickstart's held-out sums are no others than they seem: nothing in training gives them away."""

from itertools import combinations
from pathlib import Path

from ajet.config import load_experiment
from ajet.task_reader import open_reader

QUICKSTART = Path(__file__).parents[2] / "tutorial" / "quickstart" / "quickstart.yaml"


def test_no_sum_is_in_two_splits_in_either_order():
    reader = open_reader(load_experiment(QUICKSTART))
    splits = {
        split: [frozenset(task.task_id.split("+")) for task in reader.tasks(split)]
        for split in ("train", "validation", "test")
    }
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 141, "validation": 32, "test": 200}
    assert all(set(one).isdisjoint(other) for one, other in combinations(splits.values(), 2))
    assert sum(len(set(pairs)) for pairs in splits.values()) == 210, "all pairs of numbers from 1 to 20"
