"""What a person gets for each mistake in a YAML or an override: the place, what was expected, what to do."""

from pathlib import Path

import pytest

from ajet.cli.launcher import translate_flags
from ajet.config import Experiment, load_experiment
from ajet.schema.errors import ConfigError, UserError


def refused(tmp_path, text, *overrides, **more) -> ConfigError:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, overrides=overrides, **more)
    return caught.value


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("ajet:\n  rollout:\n    num_repeats: 4\n", ":3:5", ["ajet.rollout.num_repeats", "ajet.rollout.num_repeat?"]),
        ("ajet:\n  num_repeat: 4\n", ":2:3", ["did you mean ajet.rollout.num_repeat?"]),
        ("ajet:\n  modle: {path: x}\n", ":2:3", ["did you mean ajet.model?"]),
        ("ajet:\n  rollout:\n    num_repeat: many\n", ":3:17", ["'many'", "integer, at least 1"]),
        ("ajet:\n  rollout:\n    num_repeat: 0\n", ":3:17", ["at least 1"]),
        ("ajet:\n  rollout:\n    num_repeat: true\n", ":3:17", ["True", "integer"]),
        ("ajet:\n  rollout:\n    num_repeat:\n", ":3:", ["None", "integer"]),
        ("ajet:\n  rollout: [1]\n", ":2:12", ["a mapping of keys"]),
        ("ajet:\n  task_reader: {type: jsonl}\n", ":2:23", ["one of ", "did you mean jsonl_dataset_file?"]),
        ("ajet:\n  backbone: verll\n", ":2:13", ["one of debug, local, trinity, verl", "did you mean verl?"]),
        ("ajet:\n  task_reader:\n    type: jsonl\n", ":3:11", ["jsonl_dataset_file", "reference"]),
        ("ajet:\n  trainer_common:\n    logger: [console, wandbb]\n", ":3:13", ["wandb"]),
        ("ajet:\n  trainer_common:\n    optim: {betas: [0.9]}\n", ":3:", ["betas"]),
        ("ajet:\n  trainer_common:\n    optim: {betas: [1.0, 0.9]}\n", ":3:", ["betas.0 is 1.0", "below 1"]),
        ("ajet:\n  trainer_common:\n    optim: {betas: [0.9, -1]}\n", ":3:", ["betas.1 is -1", "at least 0"]),
        ("ajet:\n  trainer_common:\n    threads: 0\n", ":3:", ["threads is 0", "at least 1"]),
        ("ajet:\n  trainer_common:\n    algorithm: {is_cap: -1}\n", ":3:", ["is_cap is -1", "above 0"]),
        ("ajet:\n  model:\n    path: <YOUR_MODEL_PATH>\n", ":3:11", ["<YOUR_MODEL_PATH>"]),
        ("own:\n  key: sk-<YOUR_KEY>\n", ":2:8", ["own.key", "sk-<YOUR_KEY>"]),
        ("ajet:\n  model: {path: '${ajet.no.such}'}\n", ":2:17", ["ajet.model.path cannot be resolved"]),
        ("own: {a: '${oc.env:AJET_NO_SUCH_VARIABLE}'}\n", ":1:10", ["AJET_NO_SUCH_VARIABLE"]),
        ("ajet: {}\nown:\n  a: '${oops'\n", ":3:6", ["is not an interpolation"]),
        ("ajet:\n  rollout: {a: 1\n", ":3:1", ["is not valid YAML"]),
        ("ajet:\n\trollout: 1\n", ":2:1", ["is not valid YAML"]),
        ("ajet:\n  seed: 1\n  seed: 2\n", ":3:3", ["'seed' occurs twice"]),
        ("ajet: 5\n", ":1:7", ["must be a mapping"]),
        ("- ajet\n", ":1:1", ["not a mapping"]),
        ("own:\n  a: {{x}}\n", ":2:", ["is a placeholder of a template"]),
        ("ajet:\n  experiment_name: a/b\n", ":2:20", ["the name of a folder"]),
    ],
)
def test_a_mistake_in_the_yaml(tmp_path, text, where, words):
    error = refused(tmp_path, text)
    assert f"x.yaml{where}" in error.where
    for word in words:
        assert word in str(error), str(error)


def test_a_yaml_in_another_encoding_or_none_at_all_says_what_to_do(tmp_path):
    told = "ajet: {project_name: jos\u00e9}\n"
    for name, data in (("latin1", told.encode("latin-1")), ("utf16", told.encode("utf-16"))):
        (tmp_path / f"{name}.yaml").write_bytes(data)
        with pytest.raises(ConfigError, match=f"{name}.yaml is not UTF-8 text") as error:
            load_experiment(tmp_path / f"{name}.yaml")
        assert error.value.do == "save it as UTF-8 in your editor"
    with pytest.raises(ConfigError, match="is a folder") as error:
        load_experiment(tmp_path)
    assert "latin1.yaml" in error.value.do
    with pytest.raises(ConfigError, match="does not exist"):
        load_experiment(tmp_path / "latin1.yaml" / "x.yaml")


def test_a_folder_that_one_is_in_already_is_seen(tmp_path, monkeypatch):
    """AgentJet's tutorial goes into the project's folder, and then names that folder, too."""
    (tmp_path / "math_agent").mkdir()
    (tmp_path / "math_agent" / "math_agent.yaml").write_text("ajet: {}\n")
    monkeypatch.chdir(tmp_path / "math_agent")
    with pytest.raises(ConfigError, match="The file math_agent/math_agent.yaml does not exist") as error:
        load_experiment(Path("math_agent/math_agent.yaml"))
    assert error.value.do == "you are inside math_agent: run `cd ..` first, or write the path math_agent.yaml"
    with pytest.raises(ConfigError) as error:
        load_experiment(Path("tutorial/example_math_agent/math_agent.yaml"))
    assert error.value.do.startswith("the one that comes with ajet is /") and "tutorial/example_math" in error.value.do


def test_a_setting_of_agentrl_is_answered_with_ours(tmp_path):
    error = refused(tmp_path, "ajet:\n  trainer_common:\n    algorithm: {token_level_loss: true}\n")
    assert "loss_aggregation: token (true)" in error.do and "x.yaml:3:" in error.where
    assert "rollout.num_repeat" in refused(tmp_path, "ajet: {}\n", "num_generations=8").do
    assert "delete it" in refused(tmp_path, "ajet: {}\n", "trainer_common.optim.beta1=0.9").do
    for flag, words in (("--num_generations", "rollout.num_repeat"), ("--beta1=0.1", "delete it")):
        with pytest.raises(UserError, match="There is no option") as caught:
            translate_flags(["--conf", "x.yaml", flag, "8"])
        assert words in caught.value.do


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.num_repeats=4", ["did you mean ajet.rollout.num_repeat?"]),
        ("temprature=1", ["did you mean ajet.rollout.temperature?"]),
        ("rollout.num_repeat", ["key=value"]),
        ("rollout.num_repeat=1,2", ["key=[a,b]"]),
        ("rollout.num_repeat={a", ["grammar"]),
        ("rollout.num_repeat=[a", ["grammar"]),
        ("hydra.run.dir=x", ["Hydra's own settings"]),
        ("rollout.num_repeat=many", ["override rollout.num_repeat=many", "integer"]),
        ("mine.yaml", ["--conf mine.yaml"]),
        ("own.b.c=1", ["+key=value"]),
        ("model.path=<YOUR_MODEL>", ["<YOUR_MODEL>"]),
    ],
)
def test_a_mistake_in_an_override(tmp_path, override, words):
    error = refused(tmp_path, "ajet: {}\nown: {a: 1}\n", override)
    for word in words:
        assert word in str(error), str(error)


@pytest.mark.parametrize("override", ["++mine.l.x=3", "mine.l.7=3", "mine.l.0.a.b=3", "~mine.l.x"])
def test_an_override_into_a_list_that_names_none_of_its_places(tmp_path, override):
    error = refused(tmp_path, "mine: {l: [{a: []}, 2]}\n", override)
    assert "is a list" in error.what and error.where == f"override {override}" and "the whole list" in error.expected
    (tmp_path / "x.yaml").write_text("mine: {l: [1, 2]}\n")
    longer = load_experiment(tmp_path / "x.yaml", overrides=["mine.l=[1,2,3]", "mine.l.2=9"])
    assert longer.config.to_dict()["mine"] == {"l": [1, 2, 9]}


def test_several_mistakes_are_shown_together(tmp_path):
    error = refused(tmp_path, "ajet:\n  sed: 1\n  rollout: {num_repeat: x, top_p: 3}\n  model: {path: <YOUR_M>}\n")
    for part in ("4 settings", "x.yaml:2:3", "ajet.seed", "x.yaml:3:25", "x.yaml:3:35", "x.yaml:4:17"):
        assert part in str(error), str(error)
    assert len(str(error).splitlines()) <= 12


def test_a_missing_file_names_a_similar_one(tmp_path):
    (tmp_path / "math.yaml").write_text("ajet: {}")
    with pytest.raises(ConfigError, match="did you mean .*math.yaml"):
        load_experiment(tmp_path / "maths.yaml")


@pytest.mark.parametrize("mode", ["async", "separate_async"])
def test_how_training_would_go_is_not_refused_where_nothing_is_trained(tmp_path, mode):
    """`--backbone debug` is tried before a training, and `ajet eval` plays what one has made."""
    ready = {"model": {"path": "m"}, "task_reader": {"type": "random_dummy"}, "rollout": {"user_workflow": "w.py->W"}}
    experiment = Experiment.from_dict({"ajet": {**ready, "trainer_common": {"mode": mode}}}, base=tmp_path)
    assert experiment.ajet.backbone == "debug"
    experiment.require_ready()
    experiment.require_ready(evaluating=True)


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        (
            {"backbone": "trinity", "trainer_common": {"mode": "colocate_async"}},
            "`mode: colocate_async` is not possible on the backbone trinity",
        ),
        ({"backbone": "verl", "rollout": {"enable_oversample": True}}, "cannot begin more groups"),
        (
            {"backbone": "verl", "rollout": {"deterministic": True}},
            "`deterministic: true` is not possible on the backbone",
        ),
        (
            {"backbone": "local", "trainer_common": {"mode": "separate_async"}},
            "`mode: separate_async` is not possible on the backbone local",
        ),
    ],
)
def test_what_a_later_version_brings_composes_and_is_refused_in_one_sentence(tmp_path, tree, sentence):
    ready = {"model": {"path": "m"}, "task_reader": {"type": "random_dummy"}, "rollout": {"user_workflow": "w.py->W"}}
    merged = {**ready, **tree, "rollout": {**ready["rollout"], **tree.get("rollout", {})}}
    Experiment.from_dict({"ajet": ready}, base=tmp_path).require_ready()
    experiment = Experiment.from_dict({"ajet": merged}, base=tmp_path)
    with pytest.raises(ConfigError) as caught:
        experiment.require_ready()
    assert sentence in caught.value.what and "\n" not in caught.value.what
    assert ".yaml:" in caught.value.where


def test_what_is_missing_for_a_run_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_dict({"ajet": {"project_name": "p"}}, base=tmp_path).require_ready()
    keys = ("ajet.model.path", "ajet.rollout.user_workflow", "ajet.task_reader.huggingface_dat_repo.dataset_path")
    assert all(f"{key} (" in caught.value.what for key in keys) and "\n" not in caught.value.what


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"task_reader": {"type": "jsonl_dataset_file"}}, "ajet.task_reader.jsonl_dataset_file.training.file_path"),
        ({"task_reader": {"type": "reasoning_gym"}}, "ajet.task_reader.reasoning_gym.dataset"),
        ({"rollout": {"engine": "endpoint"}}, "ajet.rollout.endpoint.base_url"),
    ],
)
def test_a_missing_section_is_named(tmp_path, tree, key):
    with pytest.raises(ConfigError, match=key):
        Experiment.from_dict({"ajet": tree}, base=tmp_path).require_ready()


def test_a_file_is_not_similar_for_its_ending(tmp_path):
    (tmp_path / "int.yaml").write_text("{}")
    with pytest.raises(ConfigError) as error:
        load_experiment(tmp_path / "nosuch.yaml")
    assert "did you mean" not in error.value.do


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("trainer: {total_epochs: 3, zzz: 1}", ":2:3", ["top level", "ajet.trainer_common.total_epochs"]),
        ("trainer:\n    val_before_train: true", ":2:3", ["top level", "ajet.trainer_common.val_before_train"]),
        ("actor_rollout_ref: {rollout: {n: 8}}", ":2:3", ["top level", "ajet.rollout.num_repeat"]),
        ("algorithm: {adv_estimator: grpo}", ":2:3", ["top level", "ajet.trainer_common.algorithm.adv_estimator"]),
        ("verl: {trainer: {nnodes: 2}}", ":2:3", ["top level", "ajet.trainer_common.nnodes"]),
        ("reward_model: {enable: true}", ":2:3", ["`verl:`"]),
        ("trainer: fsdp", ":2:3", ["docs/agentrl.md"]),
        ("trainer_common: {clip_ratio: 0.2}", ":2:20", ["clip_low and clip_high"]),
        ("trainer_common: {algorithm: {clip_ratio: 0.2}}", ":2:32", ["clip_low and clip_high"]),
        ("trainer_common: {loss_agg_mode: token-mean}", ":2:20", ["algorithm.loss_aggregation"]),
        ("trainer_common: {ppo_mini_batch_size: 8}", ":2:20", ["trainer_common.mini_batch_num"]),
        ("rollout: {multi_turn: {tool_config_path: a}}", ":2:26", ["environment.use"]),
        ("data: {train_files: a.parquet}", ":2:10", ["docs/reference/verl_keys.md", "dataset_path"]),
    ],
)
def test_a_key_of_verls_below_ajet_says_where_it_goes(tmp_path, text, line, words):
    error = refused(tmp_path, f"ajet:\n  {text}\n")
    assert f"x.yaml{line}" in error.where
    for word in words:
        assert word in error.do, error.do
