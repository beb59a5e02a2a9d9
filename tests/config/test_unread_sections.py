"""Sections of verl's at the root of a YAML: what is not read is named, and a plain YAML of verl's says what to add."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ajet.cli import launcher
from ajet.config import load_experiment
from ajet.schema.errors import ConfigError
from tests.support.verl_fixtures import nested

VERL = """\
actor_rollout_ref:
  model: {path: embedded:tiny-tools}
  actor: {optim: {lr: 1.0e-6}, ppo_mini_batch_size: 64}
  rollout: {name: vllm, n: 5}
algorithm: {adv_estimator: grpo}
data:
  train_batch_size: 128
  max_prompt_length: 512
  max_response_length: 1024
  image_key: images
  train_files: [data/train.parquet]
reward_model: {enable: false}
trainer: {n_gpus_per_node: 8, nnodes: 1, total_epochs: 15}
"""
OURS = "ajet: {model: {path: embedded:tiny-tools}, data: {max_prompt_length: 512}}\n"


def unread(folder: Path, text: str, backbone: str) -> dict[str, tuple[str, str]]:
    """Return name -> (place, reason)."""
    (folder / "m.yaml").write_text(text)
    found = load_experiment(folder / "m.yaml", backbone=backbone).list_idle_keys()
    return {each.name: (each.where.removeprefix(f"{folder}/"), each.why) for each in found}


@pytest.mark.parametrize("backbone", ["debug", "local", "verl"])
def test_unread_keys_are_named_with_their_counterpart(tmp_path: Path, backbone: str) -> None:
    found = unread(tmp_path, OURS + VERL, backbone)
    place, reason = found["data.train_batch_size"]
    assert place == "m.yaml:8" and "ajet.data.train_batch_size: 128" in reason
    assert "ajet.data.max_response_length: 1024" in found["data.max_response_length"][1]
    assert "data.max_prompt_length" not in found, "ours says the same"
    assert found["data.image_key"][0] == "m.yaml:11" and "`verl:`" in found["data.image_key"][1]
    assert found["data.train_files"][0] == "m.yaml:12" and "task_reader" in found["data.train_files"][1]
    assert found["reward_model.enable"][0] == "m.yaml:13"


def test_a_section_without_keys_of_verl_is_the_workflows(tmp_path: Path) -> None:
    assert not unread(tmp_path, OURS + "data: {city: Rome}\nreward: {scale: 2}\n", "local")
    only = unread(tmp_path, OURS + "data: {seed: 3}\nreward: {scale: 2}\n", "local")
    assert set(only) == {"data.seed"} and "ajet.seed: 3" in only["data.seed"][1]


def test_a_plain_yaml_of_verl_gets_the_lines_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(VERL)
    with pytest.raises(SystemExit) as ended:
        launcher.main(["config", "validate", "--conf", "m.yaml"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "m.yaml" in said and "actor_rollout_ref, " in said
    lines = said[said.index("ajet:\n") :]
    (tmp_path / "m.yaml").write_text(lines + VERL)
    loaded = load_experiment(tmp_path / "m.yaml")
    settings = loaded.ajet
    assert settings.backbone == "verl" and settings.model.path == "embedded:tiny-tools"
    assert settings.rollout.num_repeat == 5 and settings.data.train_batch_size == 128
    assert (settings.data.max_prompt_length, settings.data.max_response_length) == (512, 1024)
    assert settings.task_reader.huggingface_dat_repo.dataset_path == "data"
    assert settings.rollout.user_workflow is not None
    loaded.require_ready()


def test_lines_that_are_there_are_not_suggested_again(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("ajet: {backbone: verl, rollout: {num_repeat: 3}}\n" + VERL)
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "m.yaml", overrides=["data.train_batch_size=8"]).require_ready()
    assert "max_response_length: 1024" in caught.value.do
    assert not any(each in caught.value.do for each in ("num_repeat", "backbone", "train_batch_size"))


@pytest.mark.parametrize(
    ("section", "reference"),
    [
        ("custom_reward_function: {path: reward.py, name: score}", "reward.py->score"),
        ("custom_reward_function: {path: /data/reward.py}", "/data/reward.py->compute_score"),
        ("reward: {custom_reward_function: {path: reward.py, name: score}}", "reward.py->score"),
        ("verl: {reward: {custom_reward_function: {path: reward.py}}}", "reward.py->compute_score"),
    ],
)
def test_the_lines_to_add_name_the_reward_function(tmp_path: Path, section: str, reference: str) -> None:
    (tmp_path / "m.yaml").write_text(f"{section}\n{VERL}")
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "m.yaml").require_ready()
    assert f"judge_protocol: {reference}" in caught.value.do
    judged = f"ajet: {{task_judge: {{judge_protocol: '{reference}'}}}}\n"
    found = unread(tmp_path, judged + f"{section}\n{VERL}", "verl")
    assert not any("custom_reward_function" in name for name in found), "ours says the same"


def test_the_folder_of_the_files_needs_no_word(tmp_path: Path) -> None:
    here = "ajet: {task_reader: {huggingface_dat_repo: {dataset_path: data}}}\n"
    assert "data.train_files" not in unread(tmp_path, here + VERL, "verl")
    assert "dataset_path: data" in unread(tmp_path, OURS + VERL, "verl")["data.train_files"][1]


TURNS = "actor_rollout_ref.rollout.multi_turn"


@pytest.mark.parametrize("prefix", ["", "verl."])
@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        (f"{TURNS}.tool_config_path", "tools.yaml", "environment.use"),
        (f"{TURNS}.function_tool_path", "tools.py", "environment.use"),
        (f"{TURNS}.max_assistant_turns", 4, "rollout.multi_turn.max_steps"),
        (f"{TURNS}.max_tool_response_length", 512, "rollout.mcp_agent.max_result_tokens"),
        (f"{TURNS}.max_parallel_calls", 2, "rollout.mcp_agent.parallel"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", 4, "trainer_common.micro_batch_tokens"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", 4, "trainer_common.micro_batch_tokens"),
        ("actor_rollout_ref.actor.clip_ratio", 0.3, "clip_ratio_low"),
        ("trainer.logger", ["console", "wandb"], "trainer_common.logger"),
        ("trainer.experiment_name", "mine", "experiment_name"),
    ],
)
def test_keys_that_a_run_does_not_follow_are_named(
    tmp_path: Path, prefix: str, key: str, value: object, instead: str
) -> None:
    text = OURS + yaml.safe_dump(nested(f"{prefix}{key}", value))
    place, reason = unread(tmp_path, text, "verl")[f"{prefix}{key}"]
    assert place.startswith("m.yaml:") and instead in reason
    assert instead in unread(tmp_path, text, "local")[f"{prefix}{key}"][1]


def test_what_ours_says_too_needs_no_word(tmp_path: Path) -> None:
    ours = "ajet: {experiment_name: mine, trainer_common: {logger: console}}\n"
    rows = "actor_rollout_ref: {actor: {use_dynamic_bsz: false, ppo_micro_batch_size_per_gpu: 4}}\n"
    assert not unread(tmp_path, ours + rows + "trainer: {logger: [console], experiment_name: mine}\n", "verl")


TOOLS = "tools: [{class_name: a.B, mcp: {mcp_servers_config_path: ./servers.json}}]\n"


@pytest.mark.parametrize(("tools", "use"), [(TOOLS, "./servers.json"), ("tools: []\n", "<YOUR_"), (None, "<YOUR_")])
def test_the_lines_to_add_have_the_tools(tmp_path: Path, tools: str | None, use: str) -> None:
    if tools is not None:
        (tmp_path / "tools.yaml").write_text(tools)
    text = VERL.replace("n: 5}", "n: 5, multi_turn: {tool_config_path: tools.yaml, max_assistant_turns: 4}}")
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "m.yaml").require_ready()
    lines = caught.value.do
    assert "user_workflow: mcp_agent" in lines and f"use: {use}" in lines and "max_steps: 4" in lines
