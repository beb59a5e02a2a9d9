"""The worked example of docs/adapters.md: what it refuses before its process starts, and the rows it makes of episodes.
Neither TRL nor torch is imported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ajet.schema.episode import Timeline, Verdict
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.task_reader import TaskOrder
from ajet_trl import processor
from ajet_trl.process import NOTHING, TrlRollout, build_row
from ajet_trl.settings import build_grpo_settings
from tests.docs.snippets import ROOT
from tests.support.record_fixtures import episode
from train.trainer.agent_trainer import AgentTrainer

CONFIG = {
    "model": {"path": "embedded:tiny-tools"},
    "data": {"train_batch_size": 4},
    "rollout": {"num_repeat": 2},
}


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """Aside, and nowhere else."""
    there = {None: None, "aside": processor.VERSION}
    monkeypatch.setattr(processor, "find_version", lambda folder: there["aside" if folder else None])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.yaml").write_text("{name: adder}")
    return there


def trainer(**given):
    rows = [{"question": "1+1?", "answer": "2"}]
    return AgentTrainer("agent.yaml", train_dataset=rows, train_engine_name="trl", config={**CONFIG, **given})


def test_the_page_names_the_methods_of_the_example():
    page = (ROOT / "docs" / "adapters.md").read_text()
    assert "plugins/ajet_trl/processor.py" in page and "plugins/ajet_trl/__init__.py" in page
    assert {"check_config", "train"} <= vars(processor.TrlTrainer).keys()
    assert "`check_config(config)`" in page and "`train()`" in page


def test_beside_verl_missing_or_of_another_version_it_is_refused(installed, monkeypatch):
    assert trainer().train_processor.folder is not None
    installed["aside"] = "0.27.0"
    with pytest.raises(UserError, match=r"trl 0\.27\.0 is installed") as error:
        trainer()
    assert error.value.where.endswith("share/trl")
    installed["aside"] = None
    with pytest.raises(UserError, match="not installed") as error:
        trainer()
    assert "--no-deps --target" in error.value.do
    installed[None] = processor.VERSION
    monkeypatch.setattr(processor, "find_spec", lambda name: object())
    with pytest.raises(UserError, match="verl") as error:
        trainer()
    assert "patches a class" in error.value.expected
    monkeypatch.setattr(processor, "find_spec", lambda name: None)
    assert trainer().train_processor.folder is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trainer_common": {"save_freq": 3}}, "not support trainer_common.save_freq"),
        ({"trainer_common": {"algorithm": {"clip_dual": 3.0}}}, "not support trainer_common.algorithm.clip_dual"),
        ({"trainer_common": {"algorithm": {"adv_estimator": "rloo"}}}, "the adv_estimator grpo, not rloo"),
        ({"data": {"curriculum": {"prefer": "hard"}}}, "not support data.curriculum"),
        ({"ajet": CONFIG, "trl": {"num_generations": 3}}, "trl.num_generations is set by ajet"),
        ({"trl": {"num_generations": 3}}, "trl.num_generations is set by ajet"),
        ({"rollout": {"num_repeat": 2, "engine": "vllm"}}, "not support rollout.engine: vllm"),
        ({"model": {"path": "embedded:tiny-tools", "dtype": "bfloat16"}}, "not support model.dtype: bfloat16"),
        ({"services": {"shop": {"command": "shop"}}}, "not support services"),
        ({"ajet": CONFIG, "trl": {"per_device_train_batch_size": 3}}, "a divisor of 8"),
    ],
)
def test_what_grpotrainer_has_not_is_a_value_error(given, said):
    with pytest.raises(ValueError, match=said):
        trainer(**given)


def test_keys_mean_what_they_mean_elsewhere():
    common = {"optim": {"lr": 0.5, "grad_clip": None}, "use_kl_loss": False, "algorithm": {"norm_adv_by_std": False}}
    own = {"per_device_train_batch_size": 2, "save_steps": 5}
    made = trainer(ajet={**CONFIG, "trainer_common": common}, trl=own).train_processor
    assert build_grpo_settings(made.experiment(), common).items() >= {
        "learning_rate": 0.5, "max_grad_norm": 0.0, "beta": 0.0, "scale_rewards": "none", "loss_type": "grpo",
        "num_generations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "save_steps": 5,
    }.items()  # fmt: skip


@pytest.mark.parametrize(
    ("optim", "kind"),
    [
        ({"lr_warmup_steps": 3}, "constant_with_warmup"),
        ({}, "constant"),
        ({"lr_warmup_steps": 3, "lr_schedule": "linear"}, "linear"),
    ],
)
def test_a_warm_up_counts_under_every_schedule(optim, kind):
    """transformers' `constant` has none."""
    made = trainer(trainer_common={"optim": optim}).train_processor
    found = build_grpo_settings(made.experiment(), {})
    assert (found["lr_scheduler_type"], found["warmup_steps"]) == (kind, optim.get("lr_warmup_steps", 0))


@pytest.mark.parametrize("screen", [None, {"what": "No.", "do": "something else"}])
def test_what_is_told_to_its_process_holds_no_secret_and_is_nobody_elses(monkeypatch, tmp_path, screen):
    made = trainer(trl={"hub_token": "hf_of_somebody"}).train_processor
    told = []

    class Process:
        def __init__(self, command, stdin, env):
            found = json.loads(Path(command[-1]).read_text())
            told.append((command[-1], Path(command[-1]).read_text(), env))
            if screen:
                Path(found["failed"]).write_text(json.dumps(screen))

        def wait(self):
            return 2 if screen else 0

        def kill(self):
            pass

    monkeypatch.setattr(processor.subprocess, "Popen", Process)
    for _ in range(2):
        if screen:
            with pytest.raises(UserError, match="No") as error:
                made.train()
            assert error.value.do == "something else"
        else:
            made.train()
    (first, text, environment), (second, _, _) = told
    assert first != second and not Path(first).exists(), "two of one run_path"
    assert "hf_of_somebody" not in text and "hf_of_somebody" in environment.values()


def test_which_tasks_a_step_has_is_ajets_order_also_with_fewer_than_it_asks_for():
    played = []

    class Played(Exception):
        pass

    class Plays:
        def play(self, tasks, **given):
            played.append([(place, task.task_id) for place, task in tasks])
            raise Played

    order = TaskOrder([Task(task_id=name) for name in "ab"], seed=0, shuffle=False)
    engine = SimpleNamespace(weights_changed=lambda step: None)
    episodes = TrlRollout(Plays(), engine, None, order, 2)
    for step in (0, 1):
        with pytest.raises(Played):
            episodes(["a task"] * 6, SimpleNamespace(state=SimpleNamespace(global_step=step)))
    assert played == [[(0, "a"), (1, "b"), (2, "a")], [(3, "b"), (4, "a"), (5, "b")]]


def line(ids, mask):
    told = np.full(len(ids), -0.5, np.float32)
    arrays = {"ids": np.array(ids, np.int32), "mask": np.array(mask, bool), "versions": np.zeros(len(ids), np.int32)}
    return Timeline(agent="a", target="policy", logprobs=told, logprobs_unit=told, spans=(), leaf=0, **arrays)


def test_a_row_is_the_episodes_exact_tokens_and_what_is_not_one_sequence_trains_nothing():
    whole = replace(episode(), verdict=Verdict(0.5), timelines=[line([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 0])])
    assert build_row(whole) == {
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4, 5],
        "env_mask": [1, 0, 1],
        "logprobs": [-0.5, 0.0, -0.5],
    }
    forked = replace(whole, timelines=[*whole.timelines, line([1, 2], [0, 1])])
    unscored = replace(whole, verdict=None)
    assert build_row(forked) is NOTHING and build_row(unscored) is NOTHING
    rows = TrlRollout(None, None, None, None, 3).build_rows([whole, forked, unscored])
    assert rows["verdict"] == [0.5, 0.5, None] and rows["env_mask"] == [[1, 0, 1], [0], [0]]
