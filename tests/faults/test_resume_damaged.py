"""What a run goes on from: checkpoints that are what was written, wherever the project lies; nothing goes before."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import digest_file, digest_state, run_here

pytestmark = pytest.mark.slow

WORKFLOW = """
from ajet import Workflow, WorkflowOutput

class Rewards(Workflow):
    async def execute(self, task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(messages=[{"role": "user", "content": task.task.main_query}])
        return WorkflowOutput(reward=float(task.task_thread_index))
"""
YAML = """
ajet:
  backbone: local
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout:
    user_workflow: flow.py->Rewards
    num_repeat: 2
    max_response_length_in_one_turn: 4
    max_model_len: 512
    compute_madness_checklist: []
  data: {train_batch_size: 1, max_prompt_length: 256, max_response_length: 64}
  trainer_common: {total_training_steps: 2, save_freq: 1, test_freq: -1, logger: [], optim: {lr: 1.0e-4}}
"""


def launched(project: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """The exit code of a launch in the project's folder."""
    return ajet_in(project, monkeypatch, "--conf", "x.yaml", *more)


def ajet_in(project: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command in the project's folder."""
    monkeypatch.chdir(project)
    done = run_here(*arguments)
    sys.stdout.write(done.printed)  # `said` reads it
    return done.code


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose run has two steps and two checkpoints."""
    project = tmp_path_factory.mktemp("first") / "project"
    project.mkdir()
    (project / "flow.py").write_text(WORKFLOW)
    (project / "tasks.jsonl").write_text('{"main_query": "a"}\n{"main_query": "b"}\n')
    (project / "x.yaml").write_text(YAML)
    with pytest.MonkeyPatch.context() as patch:
        assert launched(project, patch) == 0
    return project


@pytest.fixture
def moved(trained: Path, tmp_path: Path) -> Path:
    """The same project at another path."""
    return Path(shutil.copytree(trained, tmp_path / "moved"))


def run_of(project: Path) -> Path:
    return project / "launcher_record" / "x"


def steps(project: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run_of(project) / "metrics.jsonl").read_text().splitlines()]


def flip(file: Path) -> None:
    """One byte in the middle is another one."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    return " ".join((shown.out + shown.err).split())


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    moved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(run_of(moved) / "checkpoints" / "step-2" / "trainer" / "state.safetensors")
    assert launched(moved, monkeypatch) == 0
    text = said(capsys)
    assert "step-2 is damaged" in text and "state.safetensors" in text and "resumed after step 1" in text
    assert steps(moved) == [1, 2] and (run_of(moved) / "checkpoints" / "step-2.damaged-1").is_dir()


LATEST = "launcher_record/x/checkpoints/step-2"
LOADS = {
    "chat": ["chat", "x", "--prompt", "hello"],
    "export": ["export", "x"],
    "export of a step": ["export", "x", "--step", "2"],
    "prove": ["prove", "x"],
    "as the model": ["--conf", "x.yaml", "--backbone", "debug", f"model.path={LATEST}"],
    "training from it": ["--conf", "x.yaml", f"model.path={LATEST}", "experiment_name=y"],
    "resume": ["--conf", "x.yaml", "--resume", LATEST],
}


@pytest.mark.parametrize(
    ("damage", "command"),
    [*(("flipped", each) for each in LOADS), *(("cut short", each) for each in ("chat", "export", "prove"))],
)
def test_nothing_loads_a_damaged_checkpoint(
    moved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, damage: str
) -> None:
    step, other = (1, 2) if command == "prove" else (2, 1)  # what sampled the last step
    file = run_of(moved) / "checkpoints" / f"step-{step}" / "model.safetensors"
    if damage == "flipped":
        flip(file)
    else:
        os.truncate(file, 1000)
    assert ajet_in(moved, monkeypatch, *LOADS[command]) == 2
    text = said(capsys)
    assert "model.safetensors" in text and f"step-{step}" in text and "Traceback" not in text
    assert command == "resume" or f"use an undamaged one: step-{other}" in text


def test_another_file_of_the_project_is_another_run(
    moved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(moved / "tasks.jsonl", moved / "others.jsonl")
    key = "ajet.task_reader.jsonl_dataset_file.training.file_path"
    assert launched(moved, monkeypatch, f"{key}=others.jsonl") == 2
    assert "had other settings" in said(capsys)


def no_checkpoint_is_sound(run: Path) -> None:
    flip(run / "checkpoints" / "step-1" / "model.safetensors")
    flip(run / "checkpoints" / "step-2" / "model.safetensors")


def the_checkpoint_does_not_load(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-2")
    checkpoint = run / "checkpoints" / "step-1"
    file = checkpoint / "trainer" / "state.json"
    size = len(file.read_bytes())
    content = json.loads(file.read_text()) | {"format": 99}
    file.write_text(json.dumps(content).ljust(size))
    state = json.loads((checkpoint / "state.json").read_text())
    state["digests"]["trainer/state.json"] = digest_file(file)
    (checkpoint / "state.json").write_text(json.dumps({**state, "digest": digest_state(state)}))


def run_json_is_damaged(run: Path) -> None:
    (run / "run.json").write_text('{"run_id": "')


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (no_checkpoint_is_sound, "No undamaged checkpoint"),
        (the_checkpoint_does_not_load, "another model"),
        (run_json_is_damaged, "run.json"),
    ],
)
def test_what_cannot_be_gone_on_from_is_one_screen_and_costs_nothing(
    moved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    named: str,
) -> None:
    damage(run_of(moved))
    assert launched(moved, monkeypatch) == 2
    text = said(capsys)
    assert named in text and "Traceback" not in text
    assert steps(moved) == [1, 2] and (run_of(moved) / "episodes" / "step-2.jsonl").exists()
