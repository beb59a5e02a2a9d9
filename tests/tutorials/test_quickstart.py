"""The quickstart: its held-out mails are new in every word that matters, and its agent learns to look orders up."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.task_reader import open_reader
from tests.support.ajet_process import ajet, metric_rows

ROOT = Path(__file__).parents[2]
YAML = ROOT / "tutorial" / "quickstart" / "quickstart.yaml"


def test_held_out_mails_share_nothing_with_training():
    reader = open_reader(load_experiment(YAML))
    train, held_out = list(reader.tasks("train")), list(reader.tasks("validation"))
    assert (len(train), len(held_out)) == (512, 64)
    orders, phrasings = defaultdict(set), defaultdict(set)
    for split, tasks in (("train", train), ("validation", held_out)):
        for task in tasks:
            assert task.metadata["order"] in task.main_query
            orders[split].add(task.metadata["order"])
            phrasings[split].add(tuple(re.findall(r"[A-Za-z]+", task.main_query)))
    assert orders["train"].isdisjoint(orders["validation"])
    assert phrasings["train"].isdisjoint(phrasings["validation"])


@pytest.mark.extra_slow
def test_the_agent_learns_to_look_orders_up(tmp_path):
    settings = ["experiment_name=learns", "seed=3", "trainer_common.save_freq=1000"]
    done = ajet(
        "--conf", str(YAML), "--backbone", "local", "--exp-dir", str(tmp_path), *settings, cwd=tmp_path, timeout=1500
    )
    assert done.returncode == 0, done.stdout
    held_out = [row["validation/reward"] for row in metric_rows(tmp_path / "learns") if "validation/reward" in row]
    assert held_out[0] <= 0.3 and held_out[-1] >= 0.9, held_out
