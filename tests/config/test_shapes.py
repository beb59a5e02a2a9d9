"""Every shape of YAML that people bring loads, from any working directory."""

import os
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.config.compose import compose_by_hydra, merge_layers
from ajet.config.locations import find_preset
from ajet.config.overrides import parse_overrides
from ajet.config.resolution import dump_unresolved
from ajet.schema.errors import ConfigError

ROOT = Path(__file__).parents[2]

BLOCKS = """
hydra:
  searchpath:
    - file://ajet/default_config
    - file://ajet/default_config/verl         # verl only
    - file://ajet/default_config/trinity      # trinity only

defaults:
  - verl_default # verl inherit 1/1
  - trinity_default # trinity inherit 1/1
  - ajet_default
  - _self_
"""


def load(folder: Path, text: str, *overrides: str, **more):
    path = folder / "project.yaml"
    path.write_text(text)
    return load_experiment(path, overrides=overrides, **more)


@pytest.mark.parametrize("backbone", [None, "debug", "local", "verl", "trinity"])
@pytest.mark.parametrize("blocks", ["", BLOCKS])
def test_the_hydra_and_defaults_blocks_are_optional_on_every_backbone(tmp_path, blocks, backbone):
    text = "ajet:\n  project_name: p\n  rollout: {num_repeat: 7}\n" + blocks
    experiment = load(tmp_path, text, backbone=backbone)
    assert (experiment.ajet.project_name, experiment.ajet.rollout.num_repeat) == ("p", 7)
    assert experiment.ajet.backbone == (backbone or "debug")
    assert experiment.sections == {} and experiment.backbone_overrides == {}
    assert experiment.name == "project"


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("hydra: {searchpath: [file://my/config]}", "file://my/config"),
        ("hydra: {job: {name: out}}", "hydra.job"),
        ("defaults: [ajet_default, my_layer]", "my_layer"),
        ("defaults: [{db: mysql}]", "mysql"),
    ],
)
def test_unknown_entries_of_these_blocks_are_errors_with_their_place(tmp_path, line, bad):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"ajet: {{}}\n{line}\n")
    assert bad in str(caught.value)
    assert "project.yaml:2:" in caught.value.where


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "# nothing\n", "ajet:\n", "ajet:\n  rollout:\n  task_reader:\n", "---\n{}\n"])
def test_empty_files_and_empty_sections_say_nothing(tmp_path, text):
    experiment = load(tmp_path, text)
    assert experiment.ajet.rollout.num_repeat == 4
    assert experiment.ajet.task_reader.type == "huggingface_dat_repo"


def test_other_root_names_are_the_users_own_and_reach_the_workflow(tmp_path):
    text = """
ajet: {rollout: {num_repeat: 3}}
frozen_lake: {frozen_lake_size: 4, twice: "${ajet.rollout.num_repeat}", rows: [{a: 1}]}
data: {mine: true}
note: hello
"""
    experiment = load(tmp_path, text, "frozen_lake.frozen_lake_size=8", "+frozen_lake.slippery=false")
    config = experiment.config
    assert config.frozen_lake.frozen_lake_size == 8 and config.frozen_lake.twice == 3
    assert config.frozen_lake.rows[0].a == 1 and config["frozen_lake"]["slippery"] is False
    assert config.data.mine is True and config.note == "hello" and config.get("absent", 5) == 5
    assert config.ajet.rollout.multi_turn.max_steps == 30
    assert experiment.backbone_overrides == {}


def test_a_backbones_own_config_is_set_aside_unresolved(tmp_path):
    text = """
ajet: {}
trinity: {trainer: {max_token_len_per_gpu: 13000}}
verl: {trainer: {x: "${ajet.data.train_batch_size}"}}
actor_rollout_ref: {model: {path: "${actor_rollout_ref.no.such.key}"}}
critic: {a: 1}
trainer: {b: 2}
algorithm: {c: 3}
"""
    experiment = load(tmp_path, text, "actor_rollout_ref.actor.strategy=fsdp2", "trainer.b=5")
    assert experiment.sections == {}
    overrides = experiment.backbone_overrides
    assert set(overrides) == {"trinity", "verl", "actor_rollout_ref", "critic", "trainer", "algorithm"}
    assert overrides["actor_rollout_ref"] == {
        "model": {"path": "${actor_rollout_ref.no.such.key}"},
        "actor": {"strategy": "fsdp2"},
    }
    assert overrides["verl"] == {"trainer": {"x": "${ajet.data.train_batch_size}"}} and overrides["trainer"] == {"b": 5}


def test_interpolations_of_keys_and_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("AJET_TEST_MODEL", "org/model")
    text = """
ajet:
  model: {path: "${oc.env:AJET_TEST_MODEL}"}
  rollout: {num_repeat: "${own.repeat}", max_model_len: "${ajet.data.max_prompt_length}"}
  seed: "${oc.decode:${oc.env:AJET_TEST_SEED,11}}"
own: {repeat: 6, where: "${oc.env:AJET_TEST_NONE,nowhere}"}
"""
    experiment = load(tmp_path, text)
    ajet = experiment.ajet
    assert (ajet.model.path, ajet.rollout.num_repeat, ajet.rollout.max_model_len) == ("org/model", 6, 3000)
    assert ajet.seed == 11 and experiment.sections["own"]["where"] == "nowhere"


@pytest.mark.parametrize("key", ["rollout.num_repeat", "ajet.rollout.num_repeat", "++ajet.rollout.num_repeat"])
def test_overrides_with_and_without_the_leading_ajet(tmp_path, key):
    experiment = load(tmp_path, "ajet: {rollout: {num_repeat: 2}}", f"{key}=9")
    assert experiment.ajet.rollout.num_repeat == 9
    assert experiment.overrides == (f"{key}=9",)


def test_overrides_have_hydras_grammar(tmp_path):
    experiment = load(
        tmp_path,
        "ajet: {rollout: {num_repeat: 2}}",
        "rollout.compute_madness_checklist=[nonsense,wrong_toolcall]",
        "trainer_common.optim.lr=1e-5",
        "task_reader.reasoning_gym.params={a: 1, b: 'x y'}",
        "task_reader.reasoning_gym.params.c=2",
        "model.path='with space, and comma'",
        "rollout.episode_timeout=null",
        "rollout.user_workflow=my/work flow.py->It's",
        "~ajet.rollout.num_repeat",
        "+own.key=1",
        "backbone=local",
    )
    ajet = experiment.ajet
    assert ajet.rollout.compute_madness_checklist == ["nonsense", "wrong_toolcall"]
    assert ajet.trainer_common.optim.lr == 1e-5 and ajet.rollout.episode_timeout is None
    assert ajet.task_reader.reasoning_gym.params == {"a": 1, "b": "x y", "c": 2}
    assert ajet.model.path == "with space, and comma" and ajet.rollout.num_repeat == 4
    assert ajet.rollout.user_workflow == "my/work flow.py->It's"
    assert experiment.sections == {"own": {"key": 1}} and ajet.backbone == "local"


def test_the_flag_wins_over_override_and_yaml(tmp_path):
    assert load(tmp_path, "ajet: {backbone: verl}").ajet.backbone == "verl"
    assert load(tmp_path, "ajet: {backbone: verl}", "backbone=local").ajet.backbone == "local"
    assert load(tmp_path, "ajet: {backbone: verl}", backbone="local").ajet.backbone == "local"


LAYERED = """
ajet:
  backbone: local
  rollout: {num_repeat: 7, compute_madness_checklist: [nonsense]}
  data:
  task_reader: {reasoning_gym: {params: {a: [1, {b: 2}], c: null}}}
  trainer_common: {optim: {lr: 1e-6}}
verl: {actor_rollout_ref: {actor: {clip_ratio: '${ajet.rollout.num_repeat}'}}}
own: {when: 2024-01-02, deep: {er: [on, 1_000, 0o17]}}
"""
LAYERED_OVERRIDES = (
    "rollout.compute_madness_checklist=[wrong_toolcall,nonsense]", "trainer_common.optim.lr=1e-5",
    "task_reader.reasoning_gym.params={a: 1, b: 'x y', 3: [q]}", "model.path='with space, and comma'",
    "rollout.episode_timeout=null", "rollout.user_workflow=my/work flow.py->It's", "+verl.trainer.new=true",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("flag", [None, "verl"])
def test_layers_are_merged_as_hydra_composes_them(tmp_path, flag):
    (tmp_path / "layered.yaml").write_text(LAYERED)
    shipped = sorted(ROOT.glob("tutorial/*/*.yaml"))[:2]
    for path in [tmp_path / "layered.yaml", *(shipped if flag is None else ())]:
        overrides = LAYERED_OVERRIDES if path.stem == "layered" else ()
        experiment = load_experiment(path, overrides=overrides, backbone=flag)
        parsed = parse_overrides(overrides, roots=experiment.sections, backbones=["verl"])
        chosen = [layer for layer in (experiment.backbone.layer,) if layer]
        layers, more = experiment.layers, {"chosen": [*chosen, find_preset("minirl")], "flag": flag}
        ours, hydras = merge_layers(layers, parsed, **more), compose_by_hydra(layers, parsed, **more)
        assert dump_unresolved(ours) == dump_unresolved(hydras) and list(ours) == list(hydras)
        assert ours._get_flag("struct") and hydras._get_flag("struct")


def test_any_working_directory_and_hydras_state_is_left_alone(tmp_path, monkeypatch):
    from hydra import compose, initialize_config_dir

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text("a: 1\n")
    monkeypatch.chdir("/")
    with initialize_config_dir(str(tmp_path / "mine"), version_base=None):
        experiment = load(tmp_path, "ajet: {experiment_name: named}" + BLOCKS)
        assert compose("own").a == 1
    assert experiment.name == "named" and experiment.base == tmp_path and os.getcwd() == "/"
    assert experiment.root == Path("/launcher_record")


def test_yaml_anchors_and_merges(tmp_path):
    text = """
base: &base {max_steps: 5, expected_steps: 2}
ajet:
  rollout:
    multi_turn:
      <<: *base
      expected_steps: 3
"""
    turns = load(tmp_path, text).ajet.rollout.multi_turn
    assert (turns.max_steps, turns.expected_steps) == (5, 3)


def test_scalars_read_as_people_mean_them(tmp_path):
    text = "ajet: {trainer_common: {optim: {lr: 1e-6}}, experiment_name: 2024}\nown: {day: 2024-01-02, on: 'yes'}"
    experiment = load(tmp_path, text)
    assert experiment.ajet.trainer_common.optim.lr == 1e-6 and experiment.name == "2024"
    assert experiment.sections["own"]["day"] == "2024-01-02"


def test_exp_dir_and_experiment_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(tmp_path, "ajet: {}").root == tmp_path / "launcher_record"
    assert load(tmp_path, "ajet: {experiment_dir: runs}").root == tmp_path / "runs"
    assert load(tmp_path, "ajet: {experiment_dir: runs}", exp_dir=Path("/x")).root == Path("/x")


def test_dotenv_of_the_working_directory_then_beside_the_yaml(tmp_path, monkeypatch):
    for name in ("A", "B", "C"):
        monkeypatch.setenv(f"AJET_TEST_{name}", "")
        monkeypatch.delenv(f"AJET_TEST_{name}")
    monkeypatch.setenv("AJET_TEST_C", "shell")
    beside, here = tmp_path / "project", tmp_path / "cwd"
    beside.mkdir()
    here.mkdir()
    (here / ".env").write_text("AJET_TEST_A=cwd\nAJET_TEST_C=cwd\n")
    (beside / ".env").write_text("AJET_TEST_A=beside\nAJET_TEST_B=beside\n")
    monkeypatch.chdir(here)
    own = load(beside, "own: {a: '${oc.env:AJET_TEST_A}', b: '${oc.env:AJET_TEST_B}', c: '${oc.env:AJET_TEST_C}'}")
    assert own.sections["own"] == {"a": "cwd", "b": "beside", "c": "shell"}
