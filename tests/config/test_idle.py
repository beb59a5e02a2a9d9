"""What is said of keys that were set and have no effect here: which, where they were set, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ajet.backbone.descriptors import DEBUG, HELD_OUT, NO_VALIDATION
from ajet.config import Experiment, load_experiment
from ajet.config.idle import format_idle_keys
from ajet.config.schema.accepted import ACCEPTED, explain_accepted_key
from ajet.config.schema.base import SERVE, walk_keys
from ajet.config.schema.extended import config_model
from ajet.config.schema.tasks import NOT_HELD_OUT
from ajet.config.why import explain_key
from ajet_trinity.config import TRINITY
from scripts.reference.configuration import configuration_md

VLLM = "verl's servers are configured under verl.actor_rollout_ref.rollout"
YAML = """\
ajet:
  model: {path: some/model}
  rollout:
    engine: vllm
    mode: async
    vllm:
      cache_gib: 4
      eager: true
    max_env_worker: 8
  trainer_common:
    total_epochs: 2
    nnodes: 1
    optim: {lr: 1.0e-5}
    max_staleness: 2
  debug: {debug_first_n_tasks: 1}
  gateway: {idle_timeout: 10}
verl: {trainer: {balance_batch: true}}
"""


def idle(folder: Path, backbone: str, *overrides: str, serving: bool = False) -> dict[str, tuple[str, str]]:
    """Name -> (where, why)."""
    (folder / "x.yaml").write_text(YAML)
    experiment = load_experiment(folder / "x.yaml", backbone=backbone, overrides=overrides)
    found = experiment.list_idle_keys(serving=serving)
    return {each.name: (each.where.removeprefix(f"{folder}/"), each.why) for each in found}


def test_on_verl_local_engines_do_nothing(tmp_path):
    found = idle(tmp_path, "verl", "trainer_common.threads=2")
    assert found == {
        "ajet.rollout.engine": ("x.yaml:4", VLLM),
        "ajet.rollout.vllm (2 keys)": ("x.yaml:7", VLLM),
        "ajet.trainer_common.threads": (
            "override trainer_common.threads",
            "Ray sets the number of threads of verl's processes",
        ),
        "ajet.debug.debug_first_n_tasks": ("x.yaml:15", "only the debug backbone reads it"),
        "ajet.gateway.idle_timeout": ("x.yaml:16", "only `ajet serve` reads it"),
        "ajet.rollout.mode": ("x.yaml:5", "requests are always asynchronous"),
    }


def test_a_value_that_is_the_default_was_set_too(tmp_path):
    assert idle(tmp_path, "local")["ajet.trainer_common.nnodes"][0] == "x.yaml:12"


def test_keys_of_a_section_with_one_reason_share_a_line(tmp_path):
    found = idle(tmp_path, "debug")
    assert found["ajet.trainer_common (4 keys)"] == ("x.yaml:11", "debug trains nothing")
    assert found["ajet.rollout.max_env_worker"][1] == "`debug.debug_max_parallel` replaces it"
    assert found["verl"] == ("x.yaml:17", "it is a key of verl, which ajet does not read here")
    assert "ajet.rollout.vllm (2 keys)" not in found


@pytest.mark.parametrize("backbone", ["debug", "local", "verl"])
@pytest.mark.parametrize("below", [(), ("reward",)])
def test_a_reward_function_given_as_verl_has_it_says_where_it_goes(tmp_path, backbone, below):
    text = "custom_reward_function: {path: r.py, name: score}"
    for name in below:
        text = f"{name}: {{{text}}}"
    (tmp_path / "x.yaml").write_text(f"ajet: {{model: {{path: some/model}}}}\n{text}\n")
    [told] = load_experiment(tmp_path / "x.yaml", backbone=backbone).list_idle_keys()
    section = ".".join([*below, "custom_reward_function"])
    assert (told.name, told.where) == (f"{section} (2 keys)", f"{tmp_path}/x.yaml:2")
    assert "task_judge.judge_protocol: r.py->score" in told.why and "not read" in told.why
    (tmp_path / "x.yaml").write_text(f"ajet: {{model: {{path: some/model}}}}\nverl: {{{text}}}\n")
    other = {each.name: each.why for each in load_experiment(tmp_path / "x.yaml", backbone=backbone).list_idle_keys()}
    assert backbone == "verl" or "task_judge.judge_protocol" in other[f"verl.{section}.path"]


A = "trainer_common.algorithm"


@pytest.mark.parametrize(
    ("key", "value", "read_with", "why"),
    [
        (f"{A}.tau_positive", 2.0, f"{A}.policy_loss=sapo", f"{A}.policy_loss is null"),
        (f"{A}.clip_dual", 3.0, f"{A}.policy_loss=clipped", f"{A}.policy_loss is cispo"),
        (f"{A}.reward_weights", "{a: 1}", f"{A}.adv_estimator=gdpo", f"{A}.adv_estimator is grpo"),
        (f"{A}.step_discount", 0.5, f"{A}.adv_estimator=gigpo", f"{A}.adv_estimator is grpo"),
        (f"{A}.step_discount", 0.5, f"{A}.adv_estimator=mine.py->Mine", f"{A}.adv_estimator is grpo"),
        (f"{A}.norm_adv_by_std", "false", f"{A}.adv_estimator=gae", f"{A}.adv_estimator is rloo"),
        (f"{A}.kl_in_reward_coef", 0.1, f"{A}.use_kl_in_reward=true", f"{A}.use_kl_in_reward is false"),
        ("rollout.submit_oversample_multiplier", 2.0, "rollout.enable_oversample=true",
         "rollout.enable_oversample is false"),
    ],
)  # fmt: skip
def test_a_key_of_one_algorithm_or_loss_does_nothing_with_another(tmp_path, key, value, read_with, why):
    chooser, _, chosen = why.partition(" is ")
    unread = idle(tmp_path, "local", f"{key}={value}", f"{chooser}={chosen}")
    assert unread[f"ajet.{key}"] == (f"override {key}", why)
    assert f"ajet.{key}" not in idle(tmp_path, "local", f"{key}={value}", read_with)


def test_the_dual_clip_is_the_own_losses_too(tmp_path):
    assert f"ajet.{A}.clip_dual" not in idle(tmp_path, "local", f"{A}.clip_dual=3.0")


def test_keys_of_verl_say_which_of_ours_is_their_like(tmp_path):
    text = (
        "ajet: {trainer_common: {kl_loss_coef: 0.5}}\n"
        "actor_rollout_ref:\n  model: {lora_rank: 32}\n  actor: {kl_loss_coef: 0.5, loss_agg_mode: token-mean}\n"
        "verl: {actor_rollout_ref: {actor: {optim: {lr: 3.0e-5}}}, trainer: {balance_batch: true}}\n"
    )
    (tmp_path / "x.yaml").write_text(text)
    for backbone in ("debug", "local"):
        found = {
            each.name: each.why for each in load_experiment(tmp_path / "x.yaml", backbone=backbone).list_idle_keys()
        }
        own = "it is a key of verl; ajet's key for it is `ajet."
        assert found["actor_rollout_ref.model.lora_rank"] == f"{own}trainer_common.lora.rank: 32`"
        assert found["verl.actor_rollout_ref.actor.optim.lr"] == f"{own}trainer_common.optim.lr: 3e-05`"
        assert "algorithm.loss_aggregation`" in found["actor_rollout_ref.actor.loss_agg_mode"]
        assert found["verl"] == found["actor_rollout_ref"] == "it is a key of verl, which ajet does not read here"
        assert "actor_rollout_ref.actor.kl_loss_coef" not in found, "ours says the same"
    assert "verl" not in " ".join(
        each.name for each in load_experiment(tmp_path / "x.yaml", backbone="verl").list_idle_keys()
    )


def test_a_section_that_was_not_chosen_does_nothing(tmp_path):
    found = idle(tmp_path, "local", "rollout.engine=transformers")
    assert found["ajet.rollout.vllm (2 keys)"] == ("x.yaml:7", "rollout.engine is transformers")


def test_of_a_server_nothing_is_said_that_holds_of_a_launch_alone(tmp_path):
    settings = ("data.shuffle=false", "data.train_batch_size=4")
    launched, served = (idle(tmp_path, "debug", *settings, serving=serving) for serving in (False, True))
    assert "first tasks" in launched["ajet.data.shuffle"][1]
    assert "ajet.data.shuffle" not in served, "by it those who ask for a task get one"
    assert served["ajet.data.train_batch_size"][1].startswith("debug trains nothing")


def test_what_only_a_server_reads_is_idle_in_a_launch_alone(tmp_path):
    launched, served = idle(tmp_path, "local"), idle(tmp_path, "local", serving=True)
    assert launched.keys() - served.keys() == {"ajet.gateway.idle_timeout", "ajet.trainer_common.max_staleness"}
    new = "ajet.trainer_common.total_epochs", ("x.yaml:11", "`ajet serve` ends after `total_training_steps`, or never")
    assert dict([new]).items() <= served.items() and new[0] not in launched


def test_the_screen_is_one_heading_and_a_line_each(tmp_path):
    idle(tmp_path, "verl")
    experiment = load_experiment(tmp_path / "x.yaml", backbone="verl")
    heading, *rows = format_idle_keys(experiment.list_idle_keys(), "on the backbone verl").splitlines()
    assert heading == "Keys that are set but have no effect on the backbone verl:"
    assert all(re.fullmatch(r"  ajet\.\S.* \(\S*x\.yaml:\d+\): \S.*", row) for row in rows), "as the review does"
    assert len(rows) == len(experiment.list_idle_keys()) == 5
    assert format_idle_keys([], "anywhere") == ""


@pytest.mark.parametrize("backbone", ["debug", "local", "verl"])
def test_a_file_that_ajet_wrote_was_not_set_by_anybody(tmp_path, backbone):
    experiment = Experiment.from_dict({"ajet": {"backbone": backbone}}, base=tmp_path)
    (tmp_path / "resolved.yaml").write_text(experiment.dump_resolved())
    assert load_experiment(tmp_path / "resolved.yaml", backbone=backbone).list_idle_keys() == []


def test_accepted_keys_take_anything_and_reach_nobody(tmp_path):
    tree: dict[str, Any] = {}
    for name in ACCEPTED:
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = {"anything": [1]}
    experiment = Experiment.from_dict({"ajet": tree}, base=tmp_path)
    assert experiment.ajet == Experiment.from_dict({}, base=tmp_path).ajet
    assert {each.name for each in experiment.list_idle_keys()} == {f"ajet.{name}" for name in ACCEPTED}
    assert not {".".join(path) for path, _, _ in walk_keys(config_model(shipped=True))} & {*ACCEPTED}


def test_accepted_keys_may_stand_in_overrides_and_be_asked_for(tmp_path):
    (tmp_path / "x.yaml").write_text("ajet: {task_runner: {wrapper_type: asyncio}}")
    experiment = load_experiment(tmp_path / "x.yaml", overrides=["rollout.mode=sync", "++execute_test=x"])
    assert [each.name for each in experiment.list_idle_keys()] == [
        "ajet.task_runner",
        "ajet.rollout.mode",
        "ajet.execute_test",
    ]
    (line,) = explain_key(experiment, "ajet.rollout.mode")
    assert "has no effect: requests are always asynchronous" in line
    assert explain_accepted_key(("task_runner", "wrapper_type")) and explain_accepted_key(("rollout", "engine")) is None


def test_why_says_it_too(tmp_path):
    (tmp_path / "x.yaml").write_text(YAML)
    lines = list(explain_key(load_experiment(tmp_path / "x.yaml", backbone="verl"), "rollout.engine"))
    assert lines[2] == f"  It has no effect on the backbone verl: {VLLM}"


def test_each_reason_ends_a_line_and_is_in_the_docs():
    page = configuration_md()
    declared = {
        reason.why
        for _, _, notes in walk_keys(config_model(shipped=True))
        for reason in notes["idle"].values()
        if reason
    }
    for why in declared | {*ACCEPTED.values()}:
        assert why and not why.endswith(".") and "\n" not in why, why
        assert why in page, why


def test_the_section_of_the_agent_that_comes_with_ajet_does_nothing_for_a_model_alone(tmp_path):
    section = "rollout.mcp_agent.parallel=2"
    assert "ajet.rollout.mcp_agent.parallel" in idle(tmp_path, "local", section)
    for agent in ("mcp_agent", "mine.py->MadeOfIt"):
        assert not idle(tmp_path, "local", section, f"rollout.user_workflow='{agent}'").keys() & {
            "ajet.rollout.mcp_agent.parallel"
        }


def test_where_nothing_is_held_out_that_is_said_of_every_readers_keys_for_it() -> None:
    """As the schema says of them in `ajet serve`: a reader that comes in is in the descriptors, too. What a share of
    traces leaves is trained on; and a generator's own reader is there for its train tasks."""
    keys = walk_keys(config_model(shipped=True))
    of_schema = {".".join(path) for path, _, notes in keys if (said := notes["idle"].get(SERVE)) is not None
                 and said.why == NOT_HELD_OUT[SERVE] and path[0] == "task_reader"}  # fmt: skip
    more = {each for each in of_schema if each.startswith("task_reader.data_generation.")}
    assert of_schema - more - {"task_reader.tracing.validation_share"} == {*HELD_OUT}
    for backbone in (DEBUG, TRINITY):
        assert {backbone.idle[each] for each in HELD_OUT} == {NO_VALIDATION}
