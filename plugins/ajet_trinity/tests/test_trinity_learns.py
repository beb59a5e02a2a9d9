"""The tool project on Trinity, to its end and on from there: real Ray, vLLM and FSDP2 on a CPU. The same tasks in the
same order as on the local backbone and on verl, as many episodes of each, and the credit that each gives is the one
that the recorded episodes give again. Of Trinity's processes one that plays is killed with -9 and replaced, and the
engine, which ends the run: the same command goes on. AgentTrainer trains the same project there, and its reward
rises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from ajet.algorithm import assign_credit
from ajet.commands.summary import RunTally
from ajet.config import load_experiment
from ajet.engine.embedded import shipped_folder
from ajet.record import EpisodeFiles
from ajet.schema.episode import Group
from tests.docs.snippets import ROOT
from tests.support.ajet_process import ajet, metric_rows
from tests.support.trinity_here import skip_without_trinity
from tests.support.verl_runs import Life, accounted, all_gone, tool_project

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
STEPS, TASKS, REPEATS = 3, 4, 4
SETTINGS = [f"data.train_batch_size={TASKS}", f"rollout.num_repeat={REPEATS}", "trainer_common.save_freq=2"]
SETTINGS += ["trainer_common.test_freq=-1", "trainer_common.val_before_train=false", "trainer_common.device=cpu"]
SETTINGS += ["trainer_common.optim.lr=0.003", "trainer_common.max_checkpoints_to_keep=3"]
ALIKE = {"RAY_worker_niceness": "0"}
"""Else the tests beside it have the machine to themselves."""
HELD = """

class Held(PriceAgent):
    async def execute(self, workflow_task, tuner):
        import asyncio
        from pathlib import Path

        with Path(__file__).with_name("begun").open("ab") as file:
            file.write(b".")
            file.flush()
            begun = file.tell()
        while begun > bound():
            await asyncio.sleep(0.05)
        return await super().execute(workflow_task, tuner)


def bound():
    from pathlib import Path

    try:
        return int(Path(__file__).with_name("held").read_text())
    except FileNotFoundError:
        return float("inf")
"""
"""Attempts are counted in the file `begun`; while there is a file `held`, those after its number wait."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    skip_without_trinity()
    yaml = tool_project(tmp_path_factory.mktemp("trinity"))
    code = yaml.with_name("workflow.py")
    code.write_text(code.read_text() + HELD)
    return yaml


def settings_of(backbone: str, steps: int) -> list[str]:
    more = [f"experiment_name={backbone}", f"trainer_common.total_training_steps={steps}"]
    return [*SETTINGS, *more, "rollout.user_workflow=workflow.py->Held", "--backbone", backbone]


def begun(yaml) -> int:
    """Attempts so far."""
    counted = yaml.with_name("begun")
    return counted.stat().st_size if counted.exists() else 0


def killed(yaml, *, steps: int, within: int, role: str):
    """A launch of which a process is killed with -9 while an attempt of its step number `within` waits: the exit code,
    what was printed, and which processes of it live on."""
    after = begun(yaml) + TASKS * REPEATS * (within - 1)
    yaml.with_name("new").write_text(str(after))
    yaml.with_name("new").rename(yaml.with_name("held"))
    life = Life(yaml, "trinity", *settings_of("trinity", steps))
    try:
        before = len(life.rows())
        life.wait(lambda: begun(yaml) > after and len(life.rows()) >= before + within - 1, f"step {within}")
        left = life.processes()
        (victim,) = [each for each in psutil.Process(life.process.pid).children(recursive=True) if named(each, role)]
        os.kill(victim.pid, signal.SIGKILL)
        yaml.with_name("held").unlink()
        code = life.process.wait(timeout=900)
        return code, life.log.read_text(), all_gone(left)
    finally:
        yaml.with_name("held").unlink(missing_ok=True)
        life.end()


def named(process: psutil.Process, role: str) -> bool:
    """Whether Ray calls it so now: a process is recorded by the name that it had when it was seen first."""
    try:
        return role in process.name()
    except psutil.NoSuchProcess:
        return False


def trained(yaml, backbone: str, *, steps: int):
    """A launch that ends well; its run directory and what it printed."""
    ray = [] if backbone == "local" else ["--with-ray"]
    folder = yaml.parent.parent
    done = ajet("--conf", str(yaml), *settings_of(backbone, steps), *ray, cwd=folder, timeout=1500, **ALIKE)
    assert done.returncode == 0, done.stdout
    return folder / "launcher_record" / backbone, done.stdout


@pytest.fixture(scope="module")
def runs(project):
    """Of three backbones; on Trinity the process that plays is killed in the second step."""
    local, _ = trained(project, "local", steps=STEPS)
    verl, _ = trained(project, "verl", steps=STEPS)
    code, said, left = killed(project, steps=STEPS, within=2, role="WorkflowRunner")
    assert code == 0 and left == [], (left, said)
    assert "warning: explorer's runner: " in said, "it was replaced, and its group played again"
    return {"local": local, "verl": verl, "trinity": local.with_name("trinity")}


def steps_of(run):
    return [row for row in metric_rows(run) if "tasks" in row]


def recorded(run, step: int):
    return EpisodeFiles(run / "episodes").recorded(step)


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_tasks_and_episodes_are_those_of_the_local_backbone(runs, backbone):
    local, other = steps_of(runs["local"]), steps_of(runs[backbone])
    assert [row["step"] for row in other] == list(range(1, STEPS + 1))
    assert [row["tasks"] for row in other] == [row["tasks"] for row in local]
    for step in range(1, STEPS + 1):
        here, there = (
            sorted((episode.task.task_id, episode.repeat) for episode, _ in recorded(runs[each], step))
            for each in ("local", backbone)
        )
        assert here == there and len(here) == TASKS * REPEATS


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_every_token_is_sampled_by_the_weights_of_the_step_before_and_accounted_for(runs, backbone):
    for row in steps_of(runs[backbone]):
        found = recorded(runs[backbone], row["step"])
        assert {episode.policy for episode, _ in found} == {(row["step"] - 1, row["step"] - 1)}
        sampled = sum(episode.sampled_tokens for episode, _ in found)
        assert sampled == accounted(found) == row["train/sampled_tokens"]


def test_credit_is_what_the_recorded_episodes_give_again(project, runs):
    for backbone, run in runs.items():
        settings = load_experiment(project, backbone=backbone, overrides=SETTINGS).ajet
        for row in steps_of(run):
            found = recorded(run, row["step"])
            tasks: dict[str, list] = {}
            for episode, _ in sorted(found, key=lambda each: each[0].repeat):
                tasks.setdefault(episode.task.task_id, []).append(episode)
            groups = [Group(each[0].task, order, each) for order, each in enumerate(tasks.values())]
            batch = assign_credit(groups, settings, step=row["step"])
            assert {each.uuid: outcome.advantage for each, outcome in found if outcome.step} == pytest.approx(
                {uuid: outcome.advantage for uuid, outcome in batch.outcomes.items() if outcome.step}
            )
            assert batch.trained_tokens == row["train/trained_tokens"]


def test_a_run_goes_on_after_its_end_and_after_its_engine_was_killed_and_its_model_is_exported(project, runs, tmp_path):
    """Of the second launch step 4 has a checkpoint; step 5 has one where Trinity's trainer, which outlives the engine,
    got to write it, else it is trained again."""
    last = STEPS + 3
    code, said, left = killed(project, steps=last, within=3, role="vLLMRolloutModel")
    assert f"resumed after step {STEPS}" in said and code in (1, 2) and left == [], (code, left, said)
    assert "Traceback" not in said and "error  " in said, said
    assert [row["step"] for row in steps_of(runs["trinity"])] == list(range(1, last)), "it was trained, and is lost"
    run, said = trained(project, "trinity", steps=last)
    resumed = [step for step in (last - 2, last - 1) if f"resumed after step {step}" in said]
    assert run == runs["trinity"] and len(resumed) == 1, said
    rows = steps_of(run)
    assert [row["step"] for row in rows] == list(range(1, last + 1))
    assert (RunTally.from_rows(rows).skipped, RunTally.from_rows(rows).doubled) == (0, 0)
    tasks = [task for row in rows for task in row["tasks"]]
    assert len(tasks) == len(set(tasks)) == TASKS * last
    for step in range(STEPS + 1, last + 1):
        found = recorded(run, step)
        assert {episode.policy for episode, _ in found} == {(step - 1, step - 1)}
        assert len({episode.uuid for episode, _ in found}) == len(found) == TASKS * REPEATS
        assert sum(episode.sampled_tokens for episode, _ in found) == accounted(found) > 0
    assert not (run / "trinity").exists(), "what Trinity keeps for itself is gone"
    done = ajet("export", str(run), "--out", str(tmp_path / "model"), cwd=project.parent)
    assert done.returncode == 0, done.stdout
    after, before = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "model", shipped_folder("tiny-tools"))
    )
    assert after.keys() == before.keys()
    assert max(np.abs(after[name].astype(np.float32) - before[name].astype(np.float32)).max() for name in after) > 1e-4


AGENT_TRAINER = """
import sys
import yaml
from train.trainer.agent_trainer import AgentTrainer

config = yaml.safe_load(open(sys.argv[1]))
config["ajet"]["experiment_name"] = "rises"
config["ajet"]["trainer_common"] |= {
    "total_training_steps": int(sys.argv[2]), "optim": {"lr": 0.001}, "device": "cpu", "save_freq": -1,
    "test_freq": -1, "val_before_train": False,
}
AgentTrainer(
    agent="workflow.py->PriceAgent", config=config, train_engine_name=sys.argv[3], run_path="runs-" + sys.argv[3]
).train()
"""
RISES, RISEN = 8, 0.3


def test_agent_trainer_trains_on_trinity_and_the_reward_rises(project):
    (project.parent / "rises.py").write_text(AGENT_TRAINER)
    done = subprocess.run(
        [sys.executable, "rises.py", project.name, str(RISES), "trinity"], cwd=project.parent, text=True, timeout=1500,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **ALIKE, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    run = project.parent / "runs-trinity" / "rises"
    rewards = [row["train/reward"] for row in steps_of(run)]
    assert [row["step"] for row in steps_of(run)] == list(range(1, RISES + 1))
    # a rate that learns in eight steps overshoots in some runs: which replies meet in a step is a matter of timing
    assert max(np.convolve(rewards, np.ones(3) / 3, "valid")) > rewards[0] + RISEN, rewards
    for step in range(1, RISES + 1):
        found = recorded(run, step)
        assert sum(episode.sampled_tokens for episode, _ in found) == accounted(found) > 0
