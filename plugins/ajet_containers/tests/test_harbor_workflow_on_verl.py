"""Harbor tasks on verl: each agent-loop process of Ray starts its episodes' containers on its own node."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ajet.record import EpisodeFiles
from ajet_containers.tests.harbor_tasks import AGENT, list_containers, write_task
from tests.support.ajet_process import ajet, metric_rows
from tests.support.sandbox_fixtures import require
from tests.support.verl_runs import skip_without_verl

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
VERIFIER = "python3 -c 'import os; print(os.path.getsize(\"/app/calc.py\"))' > /logs/verifier/reward.txt"
"""Rewards long replies, so that the rewards of an untrained model's replies differ."""


def test_it_trains_in_containers(tmp_path: Path) -> None:
    skip_without_verl()
    require("podman")
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name, verifier=VERIFIER)
    (tmp_path / "agent.py").write_text(f"{AGENT}\nsolve()\n")
    rollout = {"user_workflow": "harbor", "num_repeat": 2, "max_response_length_in_one_turn": 40, "max_model_len": 320}
    settings = {
        "project_name": "repairs",
        "experiment_name": "repairs",
        "model": {"path": "embedded:tiny-tools"},
        "task_reader": {"type": "harbor", "harbor": {"path": "tasks"}},
        "rollout": {**rollout, "temperature": 1.0, "compute_madness_checklist": []},
        "data": {"train_batch_size": 2, "max_prompt_length": 160, "max_response_length": 160},
        "trainer_common": {"total_training_steps": 1, "device": "cpu", "test_freq": -1},
    }
    section = {"container": {"mounts": ["agent.py:/agent.py"], "memory_mb": 256}}
    agent = {"command_agent": {"command": ["python3", "/agent.py"]}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"ajet": settings, **agent, **section}))
    done = ajet("--conf", "x.yaml", "--backbone", "verl", "--with-ray", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "repairs"
    (row,) = (row for row in metric_rows(run) if "tasks" in row)
    episodes = EpisodeFiles(run / "episodes").read(1)
    assert row["train/episodes"] == len(episodes) == 4 and "grad_norm" in row
    assert all(episode.reward and episode.metadata["verifier"]["rewards"] for episode in episodes)
    assert list_containers() == []
