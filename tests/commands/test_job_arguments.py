"""AgentJetJob's names, those of AgentJet's newest job among them: each is one key of the composed configuration."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from ajet import AgentJetJob
from ajet.commands.job_arguments import KEYS, READER_FIELDS
from ajet.config import load_experiment
from ajet.config.schema.accepted import ACCEPTED
from ajet.config.schema.base import find_section_model
from ajet.config.schema.tasks import TaskReaderConfig
from ajet.schema.errors import ConfigError, UserError

NEWEST = """
ensure_new_experiment base_yaml_config experiment_dir project_name experiment_name logging n_gpu model algorithm
num_repeat batch_size swarm_mode swarm_mode_sample_collection_method max_env_worker backbone max_prompt_length
max_response_length max_response_length_in_one_turn max_model_len mini_batch_num lora_rank lora_alpha
lora_target_modules lora_load_format layered_summon gpu_memory_utilization lr ppo_epochs compute_madness_checklist
"""
"""The arguments of AgentJet's job in its newest stored version (`ajet/copilot/job.py`), in their order."""
GIVEN: dict[str, Any] = {
    "backbone": "verl",
    "model": "embedded:tiny-tools",
    "n_gpu": 3,
    "algorithm": "rloo",
    "n_gpu_for_infer": 5,
    "name": "mine",
    "experiment_name": "mine",
    "experiment_dir": "elsewhere",
    "project_name": "sums",
    "logging": ["console", "tensorboard"],
    "num_repeat": 7,
    "batch_size": 9,
    "max_env_worker": 11,
    "max_prompt_length": 100,
    "max_response_length": 200,
    "max_response_length_in_one_turn": 50,
    "max_model_len": 400,
    "mini_batch_num": 2,
    "lora_rank": 8,
    "lora_alpha": 32,
    "lora_target_modules": ["q_proj"],
    "gpu_memory_utilization": 0.6,
    "lr": 1e-4,
    "compute_madness_checklist": ["wrong_toolcall"],
}


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    return {key: value for name, each in tree.items() for key, value in flat(each, f"{path}.{name}".strip(".")).items()}


def composed(job: AgentJetJob) -> dict[str, Any]:
    return flat(job.experiment().ajet.model_dump())


def test_every_argument_of_agentjets_jobs_is_taken():
    taken = set(inspect.signature(AgentJetJob).parameters)
    assert set(NEWEST.split()) | {"n_gpu_for_infer"} <= taken
    assert taken == {*KEYS, "base_yaml_config", "ensure_new_experiment"}
    (*first,) = inspect.signature(AgentJetJob).parameters
    assert first[:5] == ["backbone", "model", "n_gpu", "algorithm", "n_gpu_for_infer"], "AgentJet's of 2026-01"


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_a_name_is_its_key_and_no_other(name, tmp_path):
    before, job = composed(AgentJetJob()), AgentJetJob(**{name: GIVEN[name]})
    changed = {key: value for key, value in composed(job).items() if value != before[key]}
    assert changed == {KEYS[name]: GIVEN[name]}
    assert getattr(job, name) == GIVEN[name]
    dumped = flat(load_experiment(job.dump_job_as_yaml(tmp_path / "job.yaml")).ajet.model_dump())
    assert dumped == composed(job)


def test_those_without_an_effect_are_said_and_those_that_cannot_be_are_refused_in_a_sentence():
    unheard = {"lora_load_format": "safetensors", "layered_summon": True, "swarm_mode": True,
               "swarm_mode_sample_collection_method": "rollout_until_finish_enough_tasks"}  # fmt: skip
    assert {*GIVEN, *unheard, "ppo_epochs"} == set(KEYS) and all(KEYS[name] in ACCEPTED for name in unheard)
    job = AgentJetJob(**unheard)
    assert {f"ajet.{KEYS[name]}" for name in unheard} <= {
        key for each in job.experiment().list_idle_keys() for key in each.keys
    }
    assert composed(AgentJetJob(ppo_epochs=1)) == composed(AgentJetJob())
    with pytest.raises(ConfigError, match="trains on a batch once") as caught:
        AgentJetJob(ppo_epochs=2).experiment()
    assert "ajet.trainer_common.ppo_epochs, as given in Python" in caught.value.where


def test_two_names_of_a_key_must_agree():
    assert AgentJetJob(name="a", experiment_name="a").experiment().name == "a"
    with pytest.raises(UserError, match="name='a' and experiment_name='b' set the same key"):
        AgentJetJob(name="a", experiment_name="b")


def test_what_is_no_argument_is_no_attribute():
    with pytest.raises(TypeError, match="batch_sise"):
        AgentJetJob(batch_sise=8)  # type: ignore[call-arg]
    job = AgentJetJob().set(rollout__num_repeat=3)
    assert (job.num_repeat, job.batch_size, job.backbone) == (3, 32, "local")
    with pytest.raises(AttributeError, match="batch_sise"):
        _ = job.batch_sise


def test_a_new_experiment_has_the_time_in_its_name():
    assert AgentJetJob(name="a", ensure_new_experiment=True).experiment().name.startswith("a_20")


BASE = """ajet:
  project_name: base
  rollout:
    user_workflow: agent.py->agent
    mode: async
    num_repeat: 6
  trainer_common:
  data: {train_batch_size: 4}
frozen_lake: {size: 4}
hydra: {searchpath: [file://ajet/default_config]}
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A YAML with an agent beside it, in another folder than the program's."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "agent.py").write_text("def agent(task, tuner):\n    return 1.0\n")
    (tmp_path / "project" / "base.yaml").write_text(BASE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "project" / "base.yaml"


def test_a_yaml_to_begin_with_is_that_yaml_with_overrides(base, tmp_path):
    job = AgentJetJob(base_yaml_config=str(base), num_repeat=2, lr=1e-4, backbone="local")
    wanted = load_experiment(
        base, backbone="local", overrides=["rollout.num_repeat=2", "trainer_common.optim.lr=1e-4", "backbone=local"]
    )
    dumped = load_experiment(job.dump_job_as_yaml(tmp_path / "dumped" / "other.yaml"))
    for made in (job.experiment(), dumped):
        assert made.settle_values() == wanted.settle_values()
        assert (made.name, made.sections) == ("base", {"frozen_lake": {"size": 4}})
    assert AgentJetJob(base_yaml_config=base).experiment().settle_values() == load_experiment(base).settle_values()
    assert job.set_section("frozen_lake", deep=True).config.frozen_lake.to_dict() == {"size": 4, "deep": True}


def test_what_stands_in_the_yaml_is_named_there(base):
    job = AgentJetJob(base_yaml_config=base)
    assert {each.where for each in job.experiment().list_idle_keys() if "ajet.rollout.mode" in each.keys} == {
        f"{base}:5"
    }
    job.set(rollout__mode="sync")
    said = {each.where for each in job.experiment().list_idle_keys() if "ajet.rollout.mode" in each.keys}
    assert said == {"ajet.rollout.mode, as given in Python"}
    base.write_text(BASE.replace("num_repeat: 6", "num_repeats: 6"))
    with pytest.raises(ConfigError, match="num_repeat") as caught:
        AgentJetJob(base_yaml_config=base)
    assert f"{base}:6:5" in caught.value.where
    with pytest.raises(ConfigError, match="does not exist"):
        AgentJetJob(base_yaml_config="nowhere.yaml")
    with pytest.raises(UserError, match="project_name is 'ajet_job' there"):
        AgentJetJob().set(project_name="ajet_job").set(project_name__deeper=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("hf", "org/sums"), {"huggingface_dat_repo.dataset_path": "org/sums"}),
        (("tracing", "spans.db"), {"tracing.sources": "spans.db"}),
        (("tracing", "spans.db", "train", "test"), {"tracing.sources": "spans.db"}),
        (("gsm8k", "copy/train.jsonl"), {"gsm8k.training.file_path": "copy/train.jsonl"}),
        (("gsm8k", "copy", "train", "test"),
         {"gsm8k.training.file_path": "copy/train", "gsm8k.validation.file_path": "copy/test"}),
        (("math", "a.jsonl", "train", "b.jsonl"),
         {"math.training.file_path": "a.jsonl", "math.validation.file_path": "b.jsonl"}),
        (("gaia", "copy", "validation"), {"gaia.training.file_path": "copy/validation"}),
        (("hotpotqa", "copy"), {"hotpotqa.training.file_path": "copy"}),
        (("agentrl", "rows.jsonl"), {"agentrl.training.file_path": "rows.jsonl"}),
        (("dataset_file", "rows.jsonl", "train", "test"), {"jsonl_dataset_file.training.file_path": "rows.jsonl"}),
        (("env_service", "http://env:1", "train", "val"),
         {"env_service.env_url": "http://env:1", "env_service.validation_split": "val"}),
        (("data_generation", "docs"), {"data_generation.document_reader.document_path": "docs"}),
        (("reasoning_gym", "basic_arithmetic"), {"reasoning_gym.dataset": "basic_arithmetic"}),
        (("dummy",), {}),
        (("dummy", "", "train", "test"), {}),
    ],
)  # fmt: skip
def test_where_a_reader_has_its_path_and_its_splits(given, told):
    before, after = composed(AgentJetJob()), composed(AgentJetJob().set_data(*given))
    changed = {key.removeprefix("task_reader."): value for key, value in after.items() if value != before[key]}
    kind = changed.pop("type", "huggingface_dat_repo")
    assert kind in (given[0], "huggingface_dat_repo", "jsonl_dataset_file", "random_dummy") and changed == told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("dummy", "rows.jsonl"), "random_dummy has no key for the path 'rows.jsonl'"),
        (("reader.py->Mine", "rows.jsonl"), "has no key for the path"),
        (("jsonll", "rows.jsonl"), "jsonll has no key for the path"),
        (("jsonl", "rows.jsonl", "train[:10]"), "has no key for the split 'train[:10]'"),
        (("jsonl", "rows.jsonl", "train", "dev"), "has no key for the split 'dev'"),
        (("tracing", "spans.db", "train", "dev"), "has no key for the split 'dev'"),
        (("gsm8k", "rows.jsonl", "train", "dev"), "has no key for the split 'dev'"),
    ],
)
def test_a_path_or_a_split_without_a_place_is_refused(given, said):
    with pytest.raises(UserError) as caught:
        AgentJetJob().set_data(*given)
    assert said in str(caught.value)


def test_every_reader_with_a_section_has_its_place():
    sections = {name for name, field in TaskReaderConfig.model_fields.items() if find_section_model(field) is not None}
    assert sections - {"columns", "random_dummy", "reasoning_gym"} == set(READER_FIELDS)
    for kind, place in READER_FIELDS.items():
        for key in (place.path, *(place.splits or ()), *([place.held_out] if place.held_out else [])):
            assert f"task_reader.{kind}.{key}" in composed(AgentJetJob())


def test_told_again_the_data_is_what_was_told_last():
    job = AgentJetJob().set_data("jsonl", "a.jsonl", validation_split="b.jsonl").set_data("jsonl", "c.jsonl")
    files = job.experiment().ajet.task_reader.jsonl_dataset_file
    assert (files.training.file_path, files.validation.file_path) == ("c.jsonl", None)
