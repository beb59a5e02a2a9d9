"""The AgentRL tutorial: its YAMLs are valid, and its script trains with two samplers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.task_reader import open_reader
from tests.ajet_command import environment, metric_rows
from tests.docs.snippets import ROOT

FOLDER = ROOT / "tutorial" / "example_agentrl"


@pytest.mark.parametrize("yaml", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_its_yamls_are_valid_and_have_their_tasks(yaml: str) -> None:
    experiment = load_experiment(FOLDER / yaml, backbone="local", overrides=["trainer_common.mode=async"])
    experiment.require_ready()
    reader = open_reader(experiment)
    train, held_out = reader.tasks("train"), reader.tasks("validation")
    assert len(train) == 192 and len(held_out) == 32
    for task in train:
        item = task.main_query.removeprefix("What does the ").removesuffix(" cost?")
        assert task.metadata["answer"] == str(task.metadata["prices"][item])
    for script in FOLDER.glob("*.sh"):
        assert os.access(script, os.X_OK), script


@pytest.mark.extra_slow
def test_one_trainer_and_two_samplers_learn(tmp_path: Path) -> None:
    few = ["trainer_common.threads=1", "trainer_common.val_before_train=true"]
    store = "sqlite:launcher_record/shop/store.db"
    done = subprocess.run(
        [str(FOLDER / "grpo_example.sh"), "shop", store, *few], cwd=tmp_path, timeout=900, text=True,
        env=environment(AJET=f"{sys.executable} -m ajet.cli.launcher", PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "192 tasks trained, 0 skipped, 0 doubled" in done.stdout
    run = tmp_path / "launcher_record" / "shop"
    held_out = [row["validation/reward"] for row in metric_rows(run) if "validation/reward" in row]
    assert held_out[-1] > held_out[0] + 0.2, held_out
    played = [(run / "logs" / f"shop_sampler_{n}.log").read_text() for n in (1, 2)]
    assert all("episodes" in said.splitlines()[-1] for said in played), "both of them played, and ended by themselves"
