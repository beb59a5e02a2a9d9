"""A run that learns nothing ends after a number of steps, with a checkpoint, its reason and the right exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loguru import logger

from ajet.cli import launcher
from ajet.config import Experiment
from ajet.record import RunDirectory
from ajet.schema.commands import format_command
from ajet.train.sources.served import ServedSource
from tests.support.ajet_process import metric_rows

AGENT = """
from collections import Counter

ATTEMPTS = Counter()


async def say(tuner):
    ask = [{"role": "user", "content": "Hi"}]
    await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=ask, max_tokens=2)


async def never(task, tuner):
    await say(tuner)
    return 0.0


async def first(task, tuner):
    \"\"\"The two attempts at a task differ in the first step only, which has four episodes.\"\"\"
    await say(tuner)
    ATTEMPTS[task.task_id] += 1
    return float(ATTEMPTS[task.task_id] % 2) if ATTEMPTS.total() <= 4 else 1.0
"""
YAML = """ajet:
  model: {path: embedded:tiny-tools, dtype: float32}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: agent.py->never, num_repeat: 2, max_model_len: 100, max_num_seqs: 4}
  data: {train_batch_size: 2, max_prompt_length: 60, max_response_length: 30}
  trainer_common:
    {use_kl_loss: false, total_training_steps: 6, test_freq: -1, threads: 1, device: cpu, stop_after_idle_steps: 2,
     max_checkpoints_to_keep: 1, keep_best: false}
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*more: str, code: int) -> str:
        with pytest.raises(SystemExit) as ended:
            launcher.main(["--conf", "x.yaml", "--backbone", "local", "--exp-dir", "record", *more])
        told = capsys.readouterr()
        said = told.out + told.err
        assert ended.value.code == code, said
        return said

    return run


@pytest.mark.slow
def test_a_run_that_never_learned_ends_as_a_mistake(train: Callable[..., str], tmp_path: Path) -> None:
    said = train(code=2)
    folder = tmp_path / "record" / "x"
    assert len(metric_rows(folder)) == 2 and (folder / "checkpoints" / "step-2").is_dir()
    assert "This run learned nothing: the attempts at each task had equal rewards in every step" in said
    assert "no training signal in 2 steps." in said and "stop_after_idle_steps" in said
    assert "Traceback" not in said
    assert format_command("sft", "--model", "embedded:tiny-tools") in said and "docs/sft.md" in said
    status = json.loads((folder / "status.json").read_text())
    assert "equal rewards" in status["learned_nothing"] and status["outcome"] == "failed"
    said = train(code=2)
    assert len(metric_rows(folder)) == 4, "who starts it again gives it as many steps more"
    train("trainer_common.stop_after_idle_steps=0", code=0)
    assert len(metric_rows(folder)) == 6


def test_a_server_goes_on_and_says_so(tmp_path: Path) -> None:
    experiment = Experiment.from_dict({"ajet": {"backbone": "local"}}, base=tmp_path)
    record = RunDirectory.open(experiment, root=tmp_path)
    equal = {"train/trained_tokens": 0, "train/episodes": 4, "train/failed": 0, "train/scored": 0}
    for step in (1, 2):
        record.metrics.log(step, equal, tasks=[step])
    told: list[str] = []
    sink = logger.add(told.append, format="{message}", level="WARNING")
    training: Any = SimpleNamespace(idle_steps=2, is_exhausted=True, step=2, run=record)
    ServedSource(None, record.experiment.ajet, None).end_step(training, None, None)  # type: ignore[arg-type]
    logger.remove(sink)
    record.close("finished")
    assert training.idle_steps == 0, "the next warning comes after as many steps again"
    assert "the last 2 steps had no training signal: no episode had a reward" in told[0]


@pytest.mark.slow
def test_a_run_that_learned_before_ends_well(train: Callable[..., str], tmp_path: Path) -> None:
    said = train("rollout.user_workflow=agent.py->first", code=0)
    assert len(metric_rows(tmp_path / "record" / "x")) == 3
    assert "its last 2 steps had no training signal (the attempts at each task had equal" in said
    assert f"Try the trained model: {format_command('chat', 'record/x')}" in said
    assert f"Serve the model:       {format_command('deploy', 'record/x')}" in said
