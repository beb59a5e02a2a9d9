"""PPO with its value head: one attempt at a task is enough to learn from; a run that was killed goes on to the same
bits, the head's among them; and its record proves the credit of every step, also where samplers or clients play.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from ajet.algorithm import assign_credit
from ajet.backbone.local.trainer import Trainer
from ajet.engine.transformers import TransformersEngine
from tests.learns import test_local_backbone_learns as repeating
from tests.learns.test_serve_learns import KEY, address, all_clients
from tests.support.ajet_process import ajet, metric_rows, start
from tests.support.local_fixtures import config_of, tiny_qwen3
from tests.support.sample_fixtures import project_in

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
STEPS = 4
SETTINGS = [
    "rollout.deterministic=true", f"trainer_common.total_training_steps={STEPS}", "trainer_common.save_freq=1",
    "trainer_common.test_freq=0", "trainer_common.val_before_train=false", "data.train_batch_size=8",
    "rollout.num_repeat=1", "trainer_common.threads=1", "trainer_common.algorithm.adv_estimator=gae",
    "trainer_common.algorithm.lam=0.95", "trainer_common.algorithm.critic.vf_coef=0.1",
    "trainer_common.algorithm.critic.warmup=1", "trainer_common.mini_batch_num=2",
]  # fmt: skip


@pytest.mark.parametrize("rank", [0, 8])
def test_one_attempt_at_each_task_learns_to_repeat_a_token(monkeypatch, rank):
    """Nothing is compared within a group: the value head is the only baseline."""
    monkeypatch.setattr(repeating, "TASKS", 192)
    monkeypatch.setattr(repeating, "REPEATS", 1)
    config = config_of(algorithm__adv_estimator="gae", optim__lr=0.01, lora__rank=rank)
    trainer = Trainer(tiny_qwen3(vocab_size=repeating.VOCABULARY, tie_word_embeddings=False), config)
    engine = TransformersEngine(trainer.policy.model, max_num_seqs=192)
    draw, rewards, explained = np.random.default_rng(0), [], []
    for step in range(1, 31):
        groups = asyncio.run(repeating.sample_groups(engine, draw, step))
        rewards.append(np.mean([episode.reward for group in groups for episode in group.episodes]))
        batch = assign_credit(groups, config, step=step, critic=trainer.values)
        explained.append(batch.metrics.get("critic/explained_variance", 0.0))
        with engine.paused():
            trainer.update(batch)
        engine.weights_changed(trainer.version)
    engine.close()
    assert np.mean(rewards[:2]) < 0.35 and np.mean(rewards[-5:]) > 0.8, np.round(rewards, 2)
    assert max(explained) > 0.1, "the head tells states apart"


def bits(run: Path) -> dict[str, bytes]:
    folder = run / "checkpoints" / f"step-{STEPS}"
    return {path.name: path.read_bytes() for path in [folder / "model.safetensors", *(folder / "trainer").iterdir()]}


def test_a_killed_run_goes_on_to_the_same_bits_and_is_proven(tmp_path):
    assert ajet("init", "tool", "--template", "tool", cwd=tmp_path).returncode == 0
    command = ["--conf", "tool/tool.yaml", "--backbone", "local", *SETTINGS]
    whole = ajet(*command, "experiment_name=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stdout
    assert "compares the attempts" not in whole.stdout, "a group of one is fine where a critic is the baseline"
    record = tmp_path / "launcher_record"
    killed = start(*command, "experiment_name=killed", cwd=tmp_path, log=tmp_path / "log")
    while killed.poll() is None and len(metric_rows(record / "killed")) < 2:
        time.sleep(0.02)  # polls the record
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    done = ajet(*command, "experiment_name=killed", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    one, other = ([row for row in metric_rows(record / name) if "tasks" in row] for name in ("whole", "killed"))
    names = ("loss", "grad_norm", "train/reward", "critic/loss", "critic/explained_variance", "critic/value_mean")
    assert [[row[name] for name in names] for row in one] == [[row[name] for name in names] for row in other]
    assert len(one) == STEPS and bits(record / "whole") == bits(record / "killed")
    proven = ajet("prove", "killed", cwd=tmp_path)
    assert proven.returncode == 0 and f"Credit of {STEPS} steps recomputed" in proven.stdout, proven.stdout
    judged = ajet("rejudge", "killed", "--judge", "exact", cwd=tmp_path)
    assert judged.returncode == 0 and "Traceback" not in judged.stdout, judged.stdout


ELSEWHERE = [
    "trainer_common.total_training_steps=2", "trainer_common.threads=1", "trainer_common.algorithm.adv_estimator=gae",
    "trainer_common.algorithm.critic.warmup=1", "trainer_common.algorithm.critic.vf_coef=0.1",
]  # fmt: skip


def require_proven_critic(folder: Path, run: Path) -> None:
    """Two steps, whose values are recorded for every attempt that was trained, and their credit computed from them."""
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == [1, 2] and all("critic/value_mean" in row for row in rows)
    proven = ajet("prove", str(run), cwd=folder)
    assert proven.returncode == 0 and "Credit of 2 steps recomputed" in proven.stdout, proven.stdout


def test_samplers_play_for_it(tmp_path):
    """They have no value head: it is the trainer's, when their groups come."""
    yaml, log = str(project_in(tmp_path) / "sums.yaml"), tmp_path / "log"
    settings = [*ELSEWHERE, "data.train_batch_size=4", "rollout.num_repeat=2"]
    store = ["--store", "sqlite:store.db"]
    trains = ["train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal", "--from-store"]
    processes = [
        start(*trains, store[1], *settings, cwd=tmp_path, log=log),
        start("sample", "--conf", yaml, *store, *settings, cwd=tmp_path, log=log),
    ]
    try:
        assert [process.wait(600) for process in processes] == [0, 0], log.read_text()
    finally:
        for process in processes:
            process.kill()
    require_proven_critic(tmp_path, tmp_path / "runs" / "sums")
    assert all(row["critic/loss"] > 0 for row in metric_rows(tmp_path / "runs" / "sums") if "tasks" in row)


def test_clients_of_a_server_play_for_it(tmp_path):
    assert ajet("init", "tool", "--template", "tool", cwd=tmp_path).returncode == 0
    settings = [*ELSEWHERE, "data.train_batch_size=4", "rollout.num_repeat=2", "trainer_common.val_before_train=false"]
    run, log = tmp_path / "launcher_record" / "tool", tmp_path / "log"
    serves = ["serve", "--conf", "tool/tool.yaml", "--backbone", "local", *settings]
    process = start(*serves, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
    try:
        assert asyncio.run(all_clients(address(run, process, log))) >= 2 * 4 * 2
        assert process.wait(timeout=600) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    require_proven_critic(tmp_path, run)
