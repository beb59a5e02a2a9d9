"""Where values come from, and what a resolved config says."""

from pathlib import Path

import pytest
import yaml

from ajet.config import Experiment, load_experiment
from ajet.config.keys import list_dotted_keys
from ajet.config.why import explain_key
from ajet.schema.errors import ConfigError

pytestmark = pytest.mark.slow

YAML = """
ajet:
  model: {path: model}
  rollout:
    user_workflow: workflow.py->W
    temperature: 0.7
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}}
frozen_lake: {size: 4, key: "${oc.env:AJET_TEST_KEY}", api_key: sk-literal}
verl: {trainer: {x: "${ajet.seed}"}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("AJET_TEST_KEY", "from-the-environment")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "x.yaml").write_text(YAML)
    (folder / "workflow.py").write_text("class W: ...")
    (folder / "tasks.jsonl").write_text("{}")
    return folder


def test_why_shows_each_layer_and_the_winner(project):
    experiment = load_experiment(project / "x.yaml", overrides=["rollout.temperature=0.5"], backbone="local")
    lines = list(explain_key(experiment, "rollout.temperature"))
    assert lines[0] == "ajet.rollout.temperature = 0.5"
    text = "\n".join(lines)
    assert "ajet_default.yaml" in text and "0.9" in text
    assert f"0.7  {project / 'x.yaml'}:6:5" in text
    assert [line for line in lines if "→" in line] == [next(line for line in lines if "override" in line)]
    assert "--backbone local" in "\n".join(explain_key(experiment, "ajet.backbone"))


def test_why_of_sections_own_keys_and_secrets(project):
    experiment = load_experiment(project / "x.yaml")
    assert any(line.startswith("ajet.rollout.temperature = 0.7") for line in explain_key(experiment, "rollout"))
    assert "frozen_lake.size = 4" in next(iter(explain_key(experiment, "frozen_lake.size")))
    text = "\n".join(explain_key(experiment, "frozen_lake.api_key"))
    assert "sk-literal" not in text and "(hidden)" in text
    with pytest.raises(ConfigError, match="did you mean ajet.rollout.temperature"):
        list(explain_key(experiment, "rollout.temprature"))


def test_the_resolved_config_repeats_the_run_from_another_folder(project, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    experiment = load_experiment(
        project / "x.yaml", backbone="local", overrides=["rollout.num_repeat=9"], exp_dir=Path("runs")
    )
    elsewhere = tmp_path / "runs" / "x" / "resolved.yaml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(experiment.dump_resolved().replace("<YOUR_SECRET>", "sk-literal"))
    monkeypatch.chdir(tmp_path)
    again = load_experiment(elsewhere)
    assert again.list_training_settings() == experiment.list_training_settings()
    assert (again.name, again.root, again.base) == (experiment.name, experiment.root, experiment.base)
    assert again.ajet.backbone == "local" and again.sections == experiment.sections
    assert again.backbone_overrides == experiment.backbone_overrides
    assert again.dump_resolved() == experiment.dump_resolved()
    assert again.ajet.rollout.user_workflow == f"{project / 'workflow.py'}->W"
    assert again.ajet.task_reader.jsonl_dataset_file.training.file_path == str(project / "tasks.jsonl")
    assert (
        [idle.name for idle in again.list_idle_keys()]
        == [idle.name for idle in experiment.list_idle_keys()]
        == ["verl"]
    )


def test_no_secret_is_written(project):
    experiment = load_experiment(project / "x.yaml")
    text = experiment.dump_resolved()
    assert "sk-literal" not in text and "from-the-environment" not in text
    assert yaml.safe_load(text)["frozen_lake"] == {
        "size": 4,
        "key": "${oc.env:AJET_TEST_KEY}",
        "api_key": "<YOUR_SECRET>",
    }
    assert "sk-literal" not in experiment.yaml_text
    assert experiment.yaml_text.replace('"<YOUR_SECRET>"', "sk-literal") == YAML
    assert experiment.config.frozen_lake.key == "from-the-environment"
    assert experiment.config.frozen_lake.api_key == "sk-literal"
    assert "from-the-environment" not in str(experiment.list_training_settings())
    (project / "again.yaml").write_text(text)
    with pytest.raises(ConfigError, match="<YOUR_SECRET>"):
        load_experiment(project / "again.yaml")


def test_values_that_look_like_something_else_survive_the_round_trip(tmp_path):
    own = {"number": "1e-6", "yes": "yes", "null": "null", "date": "2024-01-02", "n": 1e-6, "deep": [{"a": [1, None]}]}
    own["dollar"] = "\\${not.a.key}"
    experiment = Experiment.from_dict({"own": own, "ajet": {"model": {"path": "0x10"}}}, base=tmp_path)
    (tmp_path / "again.yaml").write_text(experiment.dump_resolved())
    again = load_experiment(tmp_path / "again.yaml")
    assert again.sections == experiment.sections and again.sections["own"]["dollar"] == "${not.a.key}"
    settled = experiment.replace_defaults({"ajet.trainer_common.algorithm.is_cap": None})  # what `auto` is here
    assert again.ajet == settled.ajet.model_copy(
        update={
            "experiment_name": experiment.name,
            "experiment_dir": str(experiment.root),
            "base_dir": str(experiment.base),
        }
    )


@pytest.mark.parametrize(
    "change",
    [
        {"project_name": "other"},
        {"experiment_name": "other"},
        {"gateway": {"port": 9999}},
        {"debug": {"debug_first_n_tasks": 7}},
        {"trainer_common": {"save_freq": 3, "test_freq": 9, "logger": ["console", "tensorboard"], "total_epochs": 9}},
        {"rollout": {"max_env_worker": 3}},
        {"task_reader": {"jsonl_dataset_file": {"training": {"file_path": "unused.jsonl"}}}},
    ],
)
def test_what_does_not_bear_on_training(tmp_path, change):
    plain = Experiment.from_dict({"ajet": {}}, base=tmp_path).list_training_settings()
    assert Experiment.from_dict({"ajet": change}, base=tmp_path).list_training_settings() == plain


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"ajet": {"rollout": {"num_repeat": 5}}}, "ajet.rollout.num_repeat"),
        ({"ajet": {"rollout": {"user_workflow": "a.py->B"}}}, "ajet.rollout.user_workflow"),
        ({"ajet": {"trainer_common": {"max_staleness": 9}}}, "ajet.trainer_common.max_staleness"),
        ({"ajet": {"trainer_common": {"optim": {"lr": 1.0}}}}, "ajet.trainer_common.optim.lr"),
        ({"ajet": {"model": {"path": "m"}}}, "ajet.model.path"),
        ({"ajet": {"seed": 3}}, "ajet.seed"),
        ({"frozen_lake": {"size": 5}}, "frozen_lake.size"),
    ],
)
def test_what_bears_on_training(tmp_path, change, key):
    plain = Experiment.from_dict({"ajet": {}, "frozen_lake": {"size": 4}}, base=tmp_path).list_training_settings()
    changed = Experiment.from_dict({"frozen_lake": {"size": 4}, **change}, base=tmp_path).list_training_settings()
    assert [name for name in plain if plain[name] != changed[name]] == [key]


@pytest.mark.parametrize(
    ("backbone", "change"),
    [
        ("verl", {"rollout": {"engine": "vllm"}}),
        ("verl", {"rollout": {"submit_oversample_multiplier": 3.0}}),
        ("local", {"trainer_common": {"strategy": "fsdp2", "max_staleness_strategy": "wait"}}),
        ("local", {"rollout": {"multi_turn": {"expected_steps": 7}}}),
    ],
)
def test_what_has_no_effect_on_the_backbone_does_not_bear_on_training(tmp_path, backbone, change):
    plain = Experiment.from_dict({"ajet": {"backbone": backbone}}, base=tmp_path).list_training_settings()
    changed = Experiment.from_dict({"ajet": {"backbone": backbone, **change}}, base=tmp_path).list_training_settings()
    assert changed == plain


def test_total_steps_matter_only_where_the_schedule_depends_on_them(tmp_path):
    def flat(schedule, steps):
        tree = {"trainer_common": {"optim": {"lr_schedule": schedule}, "total_training_steps": steps}}
        return Experiment.from_dict({"ajet": tree}, base=tmp_path).list_training_settings()

    assert flat("constant", 5) == flat("constant", 6)
    assert flat("cosine", 5) != flat("cosine", 6)


def test_every_key_of_the_interface_has_its_default(tmp_path):
    ajet = Experiment.from_dict({}, base=tmp_path).ajet
    assert (ajet.data.max_prompt_length, ajet.data.max_response_length, ajet.data.train_batch_size) == (3000, 15000, 32)
    assert (ajet.rollout.max_model_len, ajet.rollout.num_repeat, ajet.rollout.temperature) == (18000, 4, 0.9)
    assert ajet.trainer_common.optim.betas == [0.9, 0.95] and ajet.trainer_common.logger == "console"
    assert ajet.rollout.compute_madness_checklist == ["nonsense"] and ajet.rollout.agent_madness_reward == -1.0
    assert len(list_dotted_keys()) == len(set(list_dotted_keys())) > 150


def test_the_view_is_read_only_and_names_the_nearest_key(tmp_path):
    import copy
    import pickle

    config = Experiment.from_dict({"own": {"size": 4}}, base=tmp_path).config
    with pytest.raises(AttributeError, match="read-only"):
        config.own.size = 5
    with pytest.raises(AttributeError, match="did you mean 'size'"):
        _ = config.own.sizes
    assert pickle.loads(pickle.dumps(config)).own.size == 4 and copy.deepcopy(config).own.size == 4
    assert "size" in config.own and dict(config.own) == {"size": 4} and not hasattr(config, "other")
