"""The AgentRL tutorial: its YAMLs are valid, and its script trains with two samplers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.store import open_shared
from ajet.task_reader import open_reader
from tests.docs.snippets import ROOT
from tests.support.ajet_process import ajet, environment, metric_rows, start
from tests.support.mongod import Mongod
from tests.support.waiting import until

FOLDER = ROOT / "tutorial" / "example_agentrl"
LOGS = ("trainer_0", "sampler_1", "sampler_2")
SHORT = ["trainer_common.threads=1", "trainer_common.total_training_steps=4", "trainer_common.test_freq=4"]


def script(name: str, *arguments: str, cwd: Path) -> str:
    """Run one of the tutorial's scripts. Answers what it printed."""
    done = subprocess.run(
        [str(FOLDER / name), *arguments], cwd=cwd, timeout=900, text=True,
        env=environment(AJET=f"{sys.executable} -m ajet.cli.launcher", PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def told_to_type(heading: str) -> list[list[str]]:
    """The arguments of the commands that a section of its page shows first."""
    section = (FOLDER / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    shown = re.findall(r"```text\n(.*?)```", section, re.DOTALL)[0]
    return [line.split()[1:] for line in shown.splitlines()]


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
    said = script("grpo_example.sh", "shop", "sqlite:launcher_record/shop/store.db", *few, cwd=tmp_path)
    assert "192 tasks trained, 0 skipped, 0 doubled" in said
    run = tmp_path / "launcher_record" / "shop"
    held_out = [row["validation/reward"] for row in metric_rows(run) if "validation/reward" in row]
    assert held_out[-1] > held_out[0] + 0.2, held_out
    assert {path.name for path in (run / "logs").iterdir()} == {f"shop_{of}.log" for of in LOGS}, "and none twice"
    played = [(run / "logs" / f"shop_sampler_{n}.log").read_text() for n in (1, 2)]
    assert all("episodes" in said.splitlines()[-1] for said in played), "both of them played, and ended by themselves"


@pytest.mark.extra_slow
def test_minirl_over_mongodb_and_then_the_held_out_tasks(tmp_path: Path, mongod: Mongod) -> None:
    store = mongod.empty()
    assert "32 tasks trained, 0 skipped, 0 doubled" in script("minirl_example.sh", "shop", store, *SHORT, cwd=tmp_path)
    depths = open_shared(store).depths()
    assert (depths.leased, depths.dead) == (0, 0) and depths.next >= 32
    rows = metric_rows(tmp_path / "launcher_record" / "shop")
    assert [row["step"] for row in rows if "tasks" in row] == [1, 2, 3, 4]
    said = script("eval_example.sh", "shop", "rollout.num_repeat=1", "trainer_common.threads=1", cwd=tmp_path)
    assert "base" in said and "shop" in said, said


@pytest.mark.extra_slow
def test_it_is_killed_and_started_again_as_its_page_says(tmp_path: Path) -> None:
    def begun(arguments: list[str]) -> subprocess.Popen[str]:
        more = ["--lease", "5"] if arguments[0] == "sample" else ["--no-rehearsal"]
        there = [str(FOLDER / each) if each.endswith(".yaml") else each for each in arguments]
        return start(*there, *more, *SHORT, cwd=tmp_path, log=log)

    log, run = tmp_path / "log", tmp_path / "launcher_record" / "grpo"
    train, one, two = told_to_type("Kill it")
    assert [each[0] for each in (train, one, two)] == ["train", "sample", "sample"]
    trainer, first, second = map(begun, (train, one, two))
    try:
        two = until(lambda: sum("tasks" in row for row in metric_rows(run)) >= 2, seconds=600)
        assert two, log.read_text()  # so that one has a checkpoint
        first.kill()
        trainer.kill()
        for process in (first, trainer):
            process.wait()
        trainer, first = begun(train), begun(one)
        assert [process.wait(600) for process in (trainer, first, second)] == [0, 0, 0], log.read_text()
    finally:
        for process in (trainer, first, second):
            process.kill()
    assert "32 tasks trained, 0 skipped, 0 doubled" in log.read_text()
    assert "resumed after step" in (run / "logs" / "grpo_trainer_0.log").read_text()
    proven = ajet(*re.findall(r"`ajet (prove \w+)`", (FOLDER / "README.md").read_text())[0].split(), cwd=tmp_path)
    assert proven.returncode == 0, proven.stdout
