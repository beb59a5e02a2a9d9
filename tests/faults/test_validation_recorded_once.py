"""A validation that the checkpoint lacks, since the run was ended before it, and a run that is ended again and again
after it: each attempt is recorded once, in one row, whatever was on the disk already."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment
from ajet.record.chain import Chain
from ajet.record.metrics import Metrics
from ajet.run import learn, train
from ajet.run.auditing.audit import audit_whole
from ajet.run.launch import launch
from ajet.run.options import LaunchOptions
from tests.ajet_command import metric_rows
from tests.faults.test_second_interrupt import AGENT

STEPS, HELD_OUT, REPEATS = 3, 3, 2
YAML = f"""ajet:
  experiment_name: ended
  model: {{path: 'embedded:tiny-tools', dtype: float32}}
  task_reader: {{type: random_dummy, random_dummy: {{validation_size: {HELD_OUT}}}}}
  rollout: {{user_workflow: agent.py->Agent, num_repeat: 2, max_model_len: 100, val_kwargs: {{num_repeat: {REPEATS}}}}}
  data: {{max_prompt_length: 60, max_response_length: 30, train_batch_size: 2}}
  trainer_common:
    {{threads: 1, use_kl_loss: false, total_training_steps: {STEPS}, save_freq: 99, test_freq: 2}}
"""


class Died(Exception):
    """Stands for a kill: nothing is saved after it."""


def ended_by(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, end: Any, *, call: int = 1) -> None:
    """The process ends as that is called for the `call`th time."""
    plain, left = getattr(of, name), [call]

    def ends(*given: Any, **more: Any) -> Any:
        left[0] -= 1
        return end() if left[0] == 0 else plain(*given, **more)

    monkeypatch.setattr(of, name, ends)


def die() -> None:
    raise Died


def launched(folder: Path) -> None:
    experiment = load_experiment(folder / "demo.yaml", backbone="local", exp_dir=folder)
    assert launch(experiment, LaunchOptions(rehearsal=False)) == 0


def uuids(file: Path) -> list[str]:
    return [json.loads(line)["uuid"] for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_a_validation_that_the_checkpoint_lacks_is_recorded_once(tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "demo.yaml").write_text(YAML)
    run, file = tmp_path / "ended", tmp_path / "ended" / "episodes" / "step-2.validation.jsonl"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        ended_by(patch, train, "evaluate", lambda: os.kill(os.getpid(), signal.SIGINT))
        launched(tmp_path)
    assert [path.name for path in run.glob("checkpoints/step-*")] == ["step-2"] and not file.exists()
    with monkeypatch.context() as patch, pytest.raises(Died):
        ended_by(patch, Metrics, "log", die)  # between the validation's episodes and its row
        patch.setattr(Chain, "commit_noted", lambda chain, step: None)  # who is killed links nothing more
        launched(tmp_path)
    whole = uuids(file)
    assert len({*whole}) == len(whole) == HELD_OUT * REPEATS
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed in the middle of its write
    with monkeypatch.context() as patch, pytest.raises(Died):
        ended_by(patch, learn, "conclude", die)  # after the row, before anything is saved
        launched(tmp_path)
    assert sorted(uuids(file)) == sorted(whole) and uuids(file)[:3] == whole[:3]
    launched(tmp_path)
    assert sorted(uuids(file)) == sorted(whole)
    rows = [row for row in metric_rows(run) if "validation/tasks" in row]
    assert [row["step"] for row in rows] == [2, STEPS]
    assert [row["validation/episodes"] for row in rows] == [HELD_OUT * REPEATS] * 2
    audited = audit_whole(run)
    assert audited.ok, audited.changes
