"""What a person sees of a step and of a validation, also of one in which nothing was scored."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from ajet.commands import progress as progress_module
from ajet.commands.progress import TrainingProgress
from ajet.config import Experiment
from ajet.record import console as console_module
from ajet.record import progress as bars_module
from ajet.record.console import SafeConsole
from ajet.record.status import TO_VALIDATE
from ajet.record.trackers import console as tracker_module
from ajet.schema.episode import Episode
from ajet.schema.task import Task

SECONDS = {"seconds/step": 2.0, "seconds/rollout": 1.5, "seconds/update": 0.5}


@pytest.mark.slow
def test_lines_of_a_terminal_break_between_pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = SECONDS | {"train/reward": 0.25, "loss": -0.0123, "grad_norm": 0.5, "train/episodes": 128}
    numbers |= {"train/scored": 120, "train/failed": 8, "train/failed/agent": 8, "entropy": 0.123, "kl": 0.00123}
    numbers |= {"clip_fraction": 0.0, "mismatch_kl": 7.01e-8, "lr": 1e-4, "train/sampled_tokens": 12345}
    pairs = ("reward 0.250", "grad 0.50", "2.0 s", "rollout 1.5", "update 0.5", "lr 0.0001", "mismatch 7.01e-08")
    for width in range(50, 120):
        out = io.StringIO()
        screen = SafeConsole(file=out, force_terminal=True, color_system=None, width=width, highlight=False)
        for module in (console_module, progress_module, tracker_module):
            monkeypatch.setattr(module, "console", screen)
        monkeypatch.setenv("TERM", "xterm")
        shown = TrainingProgress(Experiment.from_dict({"ajet": {}}, base=tmp_path), None)  # type: ignore[arg-type]
        shown.on_step(3, 9, numbers)
        tracker_module.ConsoleTracker(None).metrics(3, numbers)  # type: ignore[arg-type]
        shown.close()
        lines = out.getvalue().splitlines()
        assert max(map(len, lines)) <= width and "\u00a0" not in out.getvalue()
        assert all(any(pair in line for line in lines) for pair in pairs), (width, lines)


def test_validation_knows_how_many_episodes_it_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    screen = SafeConsole(file=out, force_terminal=True, color_system=None, width=100)
    monkeypatch.setattr(bars_module, "shared_console", screen)
    status = SimpleNamespace(get={TO_VALIDATE: 64}.get)
    run = SimpleNamespace(path=tmp_path, status=status)
    shown = TrainingProgress(Experiment.from_dict({"ajet": {}}, base=tmp_path), run)  # type: ignore[arg-type]
    shown.on_episode(Episode("u", Task(task_id="t"), 0, 3, "validation"))
    shown.close()
    assert "1/64 episodes" in out.getvalue()


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
        (SECONDS | {"train/failed": 4.0}, "no episode was scored  4 failed  no training signal  "),
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
