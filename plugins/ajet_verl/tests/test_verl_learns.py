"""The addition task's experiment on verl: its reward rises within the noise of the local backbone, from the same data.

What a run's noise is, is measured: the local backbone's curves from several seeds, each held to the mean of the others.
"""

import numpy as np
import pytest

from tests.support.ajet_process import ajet, metric_rows
from tests.support.verl_runs import skip_without_verl

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
STEPS = 8
SEEDS = range(1, 6)


def trained(folder, backbone, seed):
    """Reward of each step, and held out before and after."""
    name = f"{backbone}-{seed}"
    settings = [f"experiment_name={name}", f"seed={seed}", f"trainer_common.total_training_steps={STEPS}"]
    command = ["--conf", "benchmarks/addition/addition.yaml", "--backbone", backbone, "--exp-dir", str(folder)]
    done = ajet(*command, *settings, f"trainer_common.test_freq={STEPS}", cwd=".", timeout=2400)
    assert done.returncode == 0, done.stdout
    rows = metric_rows(folder / name)
    curve = np.array([row["train/reward"] for row in rows if "tasks" in row])
    assert len(curve) == STEPS
    return curve, [row["validation/reward"] for row in rows if "validation/reward" in row]


def test_the_addition_task_learns_on_verl_as_it_does_locally(tmp_path):
    skip_without_verl()
    local = [trained(tmp_path, "local", seed) for seed in SEEDS]
    verl, held_out = trained(tmp_path, "verl", SEEDS[0])
    curves = np.stack([curve for curve, _ in local])
    apart = [
        np.abs(curve - np.delete(curves, at, axis=0).mean(axis=0)).mean() for at, curve in enumerate(curves)
    ]  # 0.10 to 0.19 when this was written, and verl 0.13 from the mean of all
    assert np.abs(verl - curves.mean(axis=0)).mean() <= 1.1 * max(apart), (verl, curves)
    assert held_out[-1] >= min(after[-1] for _, after in local) - 0.1, held_out
    assert held_out[-1] > held_out[0] + 0.2, held_out
