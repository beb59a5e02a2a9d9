"""A record that the disk refuses: one screen and exit code 2, at the start and in the middle; nothing half is left."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.runs import launch_breaks, run_here

pytestmark = pytest.mark.slow

WORKFLOW = """
import os
from pathlib import Path
from ajet import Workflow, WorkflowOutput

RUNS = Path(os.environ["RUNS_OF_THIS_TEST"])

def fills():
    with (RUNS / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass

def moves():
    if (RUNS / "x").exists():
        (RUNS / "x").rename(RUNS / "y")

def blocks():
    for status in RUNS.rglob("status.json"):
        if status.is_file():
            status.unlink()
            status.mkdir()

class Does(Workflow):
    async def execute(self, task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(messages=[{"role": "user", "content": "x"}])
        globals()[task.task.main_query]()
        return WorkflowOutput(reward=float(task.task_thread_index))
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout:
    user_workflow: flow.py->Does
    num_repeat: 2
    max_response_length_in_one_turn: 4
    max_model_len: 512
    compute_madness_checklist: []
  data: {train_batch_size: 1, max_prompt_length: 256, max_response_length: 64}
  trainer_common: {total_training_steps: 1, save_freq: -1, test_freq: -1, logger: [], optim: {lr: 1.0e-4}}
  debug: {debug_first_n_tasks: 1}
"""
Launch = Callable[..., tuple[int, str]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "flow.py").write_text(WORKFLOW)
    (project / "x.yaml").write_text(YAML)

    def launched(runs: Path, backbone: str, deed: str) -> tuple[int, str]:
        """Exit code and screen of a run whose workflow does `deed`."""
        monkeypatch.setenv("RUNS_OF_THIS_TEST", str(runs))
        (project / "tasks.jsonl").write_text(json.dumps({"main_query": deed}) + "\n")
        done = run_here("--conf", "x.yaml", "--backbone", backbone, "--exp-dir", runs)
        return done.code, " ".join(done.printed.split())

    return launched


def leftovers(runs: Path) -> list[str]:
    return [path.name for path in runs.rglob("*") if path.name.endswith(".aside") or path.name == "lock.json"]


def is_one_screen(code: int, said: str, why: str) -> bool:
    assert code == 2, said
    return why in said and "Traceback" not in said and "a bug in ajet" not in said


@pytest.mark.parametrize("backbone", ["debug", "local"])
def test_a_full_disk_at_the_start(disk: Path, launch: Launch, backbone: str) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while file.write(b"x" * 4096):
            pass
    assert is_one_screen(*launch(disk, backbone, "fills"), "disk is full")
    assert leftovers(disk) == []


@pytest.mark.parametrize("backbone", ["debug", "local"])
def test_a_read_only_disk_at_the_start(disk: Path, launch: Launch, backbone: str) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert is_one_screen(*launch(disk, backbone, "fills"), "read-only")


def test_a_disk_that_fills_up_in_the_middle(disk: Path, launch: Launch, tmp_path: Path) -> None:
    assert is_one_screen(*launch(disk, "local", "fills"), "disk is full")
    assert leftovers(disk) == []


def test_a_folder_that_is_moved_in_the_middle(tmp_path: Path, launch: Launch) -> None:
    assert is_one_screen(*launch(tmp_path / "runs", "local", "moves"), "moved or deleted")
    assert sorted(os.listdir(tmp_path / "runs")) == ["y"]


def test_a_status_that_cannot_be_written_is_a_warning(tmp_path: Path, launch: Launch) -> None:
    code, said = launch(tmp_path / "runs", "debug", "blocks")
    assert code == 0 and "status of the run cannot be written" in said and "2 scored" in said


def test_the_log_of_a_crash_lies_where_the_runs_lie(tmp_path: Path, launch: Launch) -> None:
    with launch_breaks(RuntimeError("a bug")):
        code, said = launch(tmp_path / "runs", "debug", "blocks")
    assert code == 1 and str(tmp_path / "runs" / "crash.log") in said
    assert "a bug" in (tmp_path / "runs" / "crash.log").read_text()
    assert not Path("launcher_record").exists()
