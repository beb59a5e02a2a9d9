"""The quickstart's experiment on verl: its reward rises as on the local backbone, from the same seed and data."""

import pytest

from tests.ajet_command import ajet, metric_rows
from tests.verl_runs import skip_without_verl

pytestmark = pytest.mark.extra_slow
STEPS = 8
YAML = "tutorial/quickstart/quickstart.yaml"


def test_the_quickstart_learns_on_verl_as_it_does_locally(tmp_path):
    skip_without_verl()
    settings = [f"trainer_common.total_training_steps={STEPS}", f"trainer_common.test_freq={STEPS}", "seed=1"]
    curves, held_out = {}, {}
    for backbone in ("local", "verl"):
        arguments = [
            "--conf",
            "tutorial/quickstart/quickstart.yaml",
            "--backbone",
            backbone,
            "--exp-dir",
            str(tmp_path),
        ]
        done = ajet(*arguments, f"experiment_name={backbone}", *settings, cwd=".", timeout=2400)
        assert done.returncode == 0, done.stdout
        rows = metric_rows(tmp_path / backbone)
        curves[backbone] = [row["train/reward"] for row in rows if "tasks" in row]
        held_out[backbone] = [row["validation/reward"] for row in rows if "validation/reward" in row]
    assert len(curves["verl"]) == len(curves["local"]) == STEPS
    apart = [abs(one - other) for one, other in zip(curves["local"], curves["verl"], strict=True)]
    assert sum(apart) / STEPS < 0.15, curves  # one step's mean over 64 episodes has a deviation of 0.06
    assert held_out["verl"][-1] > held_out["verl"][0], held_out
