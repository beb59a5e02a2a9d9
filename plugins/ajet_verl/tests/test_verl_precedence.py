"""Keys that stand below `ajet:` and in a section of verl's: verl's counts, and a line names both places."""

from __future__ import annotations

from pathlib import Path

import pytest
from loguru import logger

from ajet.cli import launcher
from ajet.commands.launch import launch
from ajet.config import Experiment, load_experiment
from ajet.config.readiness import get_setting
from ajet.train.runner import LaunchOptions
from ajet_verl.config.precedence import apply_sections, describe_overridden, find_overridden
from tests.support.verl_fixtures import experiment, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.slow]

YAML = """ajet:
  backbone: verl
  model: {path: embedded:smollm2-135m, dtype: float32}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: agent.py->agent, num_repeat: 4, max_model_len: 200}
  data: {train_batch_size: 2, max_prompt_length: 100, max_response_length: 80}
  trainer_common: {use_kl_loss: false, total_training_steps: 3, n_gpus_per_node: 1, device: cpu}
actor_rollout_ref:
  model: {path: embedded:tiny-tools}
  rollout: {n: 5}
trainer: {total_training_steps: 7}
verl:
  data: {train_batch_size: 6}
"""
PLACES = {
    "ajet.model.path": ("m.yaml:3", "actor_rollout_ref.model.path (m.yaml:9)", "embedded:tiny-tools"),
    "ajet.rollout.num_repeat": ("m.yaml:5", "actor_rollout_ref.rollout.n (m.yaml:10)", "5"),
    "ajet.trainer_common.total_training_steps": ("m.yaml:7", "trainer.total_training_steps (m.yaml:11)", "7"),
    "ajet.data.train_batch_size": ("m.yaml:6", "verl.data.train_batch_size (m.yaml:13)", "6"),
}


@pytest.mark.parametrize(
    "command",
    [["plan", "--conf", "m.yaml"], ["--conf", "m.yaml", "--dry-run"], ["config", "validate", "--conf", "m.yaml"]],
)
def test_both_places_and_verls_value_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "m.yaml").write_text(YAML)
    (tmp_path / "agent.py").write_text("async def agent(task, tuner):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        launcher.main(command)
    said = capsys.readouterr().out
    assert ended.value.code == 0
    for key, (ours, verls, value) in PLACES.items():
        (line,) = [line for line in said.splitlines() if line.strip().startswith(key)]
        assert f"{key} ({ours})" in line and verls in line and line.endswith(f" {value}")
    if command[0] != "config":
        assert "6 tasks × 5 episodes, 1 update" in said and "model embedded:tiny-tools" in " ".join(said.split())


def test_a_launch_says_it_and_trains_with_verls_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.yaml").write_text(YAML)
    (tmp_path / "agent.py").write_text("async def agent(task, tuner):\n    return 1.0\n")
    trained: list[Experiment] = []
    monkeypatch.setattr("ajet_verl.train.train_on_verl", lambda given, *_: trained.append(given))
    monkeypatch.setattr("ajet.commands.summary.print_summary", lambda run: None)
    told: list[str] = []
    sink = logger.add(told.append, format="{message}")
    try:
        launch(load_experiment(tmp_path / "m.yaml", exp_dir=tmp_path / "runs"), LaunchOptions())
    finally:
        logger.remove(sink)
    (said,) = [each for each in told if "ajet.rollout.num_repeat" in each]
    assert "m.yaml:5" in said and "m.yaml:10" in said
    (given,) = trained
    assert (given.ajet.rollout.num_repeat, given.ajet.model.path) == (5, "embedded:tiny-tools")
    assert given.ajet.count_steps(100) == 7


ACTOR = "actor_rollout_ref.actor"
MAPPED = [
    ("rollout.num_repeat", 4, "actor_rollout_ref.rollout.n", 5),
    ("rollout.max_model_len", 9000, "actor_rollout_ref.rollout.max_model_len", 8000),
    ("rollout.temperature", 0.5, "actor_rollout_ref.rollout.temperature", 0.7),
    ("rollout.gpu_memory_utilization", 0.5, "actor_rollout_ref.rollout.gpu_memory_utilization", 0.6),
    ("data.train_batch_size", 32, "verl.data.train_batch_size", 64),
    ("data.max_prompt_length", 700, "verl.data.max_prompt_length", 800),
    ("data.max_response_length", 700, "verl.data.max_response_length", 800),
    ("trainer_common.optim.lr_schedule", "cosine", "actor_rollout_ref.actor.optim.lr_scheduler_type", "constant"),
    ("trainer_common.optim.lr", 1e-5, "actor_rollout_ref.actor.optim.lr", 1e-6),
    ("trainer_common.mini_batch_num", 1, "actor_rollout_ref.actor.ppo_mini_batch_size", 16),
    ("trainer_common.micro_batch_tokens", 9000, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", 20000),
    ("trainer_common.kl_loss_coef", 0.5, "actor_rollout_ref.actor.kl_loss_coef", 0.1),
    ("trainer_common.lora.rank", 8, "actor_rollout_ref.model.lora_rank", 16),
    ("trainer_common.total_epochs", 2, "trainer.total_epochs", 15),
    ("trainer_common.total_training_steps", 9, "trainer.total_training_steps", 10),
    ("trainer_common.save_freq", 9, "trainer.save_freq", 10),
    ("trainer_common.test_freq", 9, "trainer.test_freq", 10),
    ("trainer_common.nnodes", 2, "trainer.nnodes", 1),
    ("trainer_common.algorithm.adv_estimator", "grpo", "algorithm.adv_estimator", "rloo"),
    ("trainer_common.kl_loss_type", "k1", "actor_rollout_ref.actor.kl_loss_type", "low_var_kl"),
    ("trainer_common.algorithm.loss_aggregation", "token", f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean"),
    ("rollout.val_kwargs.temperature", 0.1, "actor_rollout_ref.rollout.val_kwargs.temperature", 0.2),
    ("trainer_common.max_staleness", 1, "trainer.v1.sampler.max_off_policy_threshold", 9),
    ("trainer_common.resume", "auto", "trainer.resume_mode", "disable"),
    ("trainer_common.optim.betas", [0.8, 0.9], "actor_rollout_ref.actor.optim.betas", [0.9, 0.99]),
    ("project_name", "ours", "trainer.project_name", "theirs"),
]  # fmt: skip
"""A key of ours, its value, a key of verl's, its value."""
TRANSLATED = {
    "trainer_common.mini_batch_num": 4,
    "trainer_common.algorithm.loss_aggregation": "sequence",
    "trainer_common.resume": "never",
    "trainer_common.max_staleness": 1,
}
"""What is not taken over as it is: computed from verl's, or verl's alone."""


def built(theirs: int):
    """The experiment with our value and verl's (`theirs`: which column of MAPPED is verl's value)."""
    roots: dict = {}
    for row in MAPPED:
        *parents, name = row[2].split(".")
        node = roots
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = row[theirs]
    return experiment({ours: value for ours, value, _, _ in MAPPED}, **roots)


def test_every_pair_of_the_mapping_is_compared() -> None:
    made = built(3)
    assert {(each.key, each.verl_key, str(each.value)) for each in find_overridden(made)} == {
        (f"ajet.{ours}", verl, str(value)) for ours, _, verl, value in MAPPED
    }
    laid = apply_sections(made)
    taken = {ours: get_setting(laid.ajet, tuple(ours.split("."))) for ours, _, _, _ in MAPPED}
    assert taken == {ours: value for ours, _, _, value in MAPPED} | TRANSLATED


def test_equal_values_and_keys_set_once_say_nothing() -> None:
    section = {"rollout": {"n": 4}, "actor": {"loss_agg_mode": "token-mean", "entropy_coeff": 0.1}}
    same = experiment(
        {"rollout.num_repeat": 4, "trainer_common.algorithm.loss_aggregation": "token"},
        actor_rollout_ref=section,
        trainer={"nnodes": 2},
    )
    assert not find_overridden(same)
    assert apply_sections(same).ajet.trainer_common.nnodes == 2
    assert apply_sections(experiment()).ajet == experiment().ajet


def test_an_override_of_ours_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(YAML)
    loaded = load_experiment(tmp_path / "m.yaml", overrides=["rollout.num_repeat=8", "trainer.total_training_steps=3"])
    found = {each.key: each for each in find_overridden(loaded)}
    assert "rollout.num_repeat" in found["ajet.rollout.num_repeat"].where
    assert found["ajet.rollout.num_repeat"].value == 5
    assert "ajet.trainer_common.total_training_steps" not in found


def test_a_value_of_the_environment_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PROJECT", "confidential")
    made = experiment({"project_name": "ours"}, trainer={"project_name": "${oc.env:MY_PROJECT}"})
    (found,) = find_overridden(made)
    assert "confidential" not in describe_overridden([found]) and "MY_PROJECT" in str(found.value)
    assert apply_sections(made).ajet.project_name == "confidential"
