"""The quickstart's held-out sums are no others than they seem: nothing in training gives them away."""

from pathlib import Path

from ajet.config import load_experiment
from ajet.task_reader import open_reader

QUICKSTART = Path(__file__).parents[2] / "tutorial" / "quickstart" / "quickstart.yaml"


def test_no_held_out_sum_is_trained_on_in_either_order():
    reader = open_reader(load_experiment(QUICKSTART))
    held_out, trained = (
        [frozenset(task.task_id.split("+")) for task in reader.tasks(split)] for split in ("validation", "train")
    )
    assert len(held_out) == 32 and len(trained) == 341
    assert set(held_out).isdisjoint(trained)
