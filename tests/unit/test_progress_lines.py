"""What a person sees of a step and of a validation, also of one in which nothing was scored."""

from pathlib import Path

import pytest

from ajet.config import Experiment
from ajet.run.progress import TrainingProgress

SECONDS = {"seconds/step": 2.0, "seconds/rollout": 1.5, "seconds/update": 0.5}


@pytest.fixture
def progress(tmp_path):
    shown = TrainingProgress(Experiment.from_dict({"ajet": {}}, base=Path(tmp_path)), None)  # type: ignore[arg-type]
    yield shown
    shown.close()


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (
            SECONDS | {"train/reward": 0.25, "loss": -0.1, "grad_norm": 0.5},
            "step    3/9  reward 0.250  grad 0.50  2.0 s",
        ),
        (
            SECONDS
            | {"train/reward": 0.41, "train/episodes": 256, "train/scored": 227, "train/failed": 28, "loss": 0.0}
            | {"train/failed/environment": 28, "train/aborted": 1},
            "reward 0.410 over 227 of 256; 28 environment, 1 aborted  grad",
        ),
        (
            SECONDS
            | {"train/reward": 0.4, "train/episodes": 8, "train/scored": 6, "train/failed": 3, "loss": 0.0}
            | {"train/failed/agent": 2, "train/failed/sandbox": 1},  # one by the policy, with a reward
            "reward 0.400 over 6 of 8; 1 agent, 1 sandbox  grad",
        ),
        (SECONDS | {"train/failed": 4.0}, "no episode was scored  4 failed  nothing to learn from  "),
        (
            {"validation/tasks": 8, "validation/reward": 0.5, "seconds/validation": 1.0},
            "held out: reward 0.500 (8 tasks",
        ),
        ({"validation/tasks": 8, "validation/failed": 8.0}, "held out: no episode was scored, 8 failed"),
    ],
)
def test_a_line_for_each(progress, capsys, metrics, line):
    progress.on_step(3, 9, metrics)
    assert line in capsys.readouterr().out.replace("\n", " ")
