"""A trained run, made once for all contract tests, which copy it before they change it."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.ajet_process import ajet

TOOL_SETTINGS = [
    "model.dtype=float32", "trainer_common.total_training_steps=2", "trainer_common.save_freq=1",
    "trainer_common.test_freq=2", "data.train_batch_size=2", "rollout.num_repeat=4", "trainer_common.threads=1",
]  # fmt: skip


@pytest.fixture(scope="session")
def tool_project(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder with the project `tool`, and in launcher_record/plain its run: two steps of the local backbone with
    every version's weights kept, at a temperature that is not 1. The first worker that needs it makes it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "tool_project"
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            folder.mkdir()
            assert ajet("init", "tool", "--template", "tool", cwd=folder).returncode == 0
            yaml = next((folder / "tool").glob("*.yaml"))
            more = ["experiment_name=plain", "rollout.temperature=0.8", *TOOL_SETTINGS]
            done = ajet("--conf", str(yaml), "--backbone", "local", *more, cwd=folder)
            assert done.returncode == 0, done.stdout
            (folder / "made").touch()
    return folder
