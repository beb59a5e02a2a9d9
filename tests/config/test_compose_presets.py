"""Presets: settings that lie under a YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ajet.algorithm import open_algorithm
from ajet.algorithm.token_loss import TokenLoss
from ajet.config import Experiment, load_experiment
from ajet.config.locations import find_preset
from ajet.config.schema.algorithm import AlgorithmConfig
from ajet.config.why import explain_key
from ajet.schema.errors import ConfigError

KEY = "ajet.trainer_common.algorithm"
NAMES = ["minirl", "grpo"]


def of(name: str, **algorithm) -> Experiment:
    tree = {"ajet": {"trainer_common": {"algorithm": {"preset": name, **algorithm}}}}
    return Experiment.from_dict(tree, base=Path("/somewhere"))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_what_its_file_says(name):
    found = of(name).ajet.trainer_common
    said = yaml.safe_load(find_preset(name).read_text())["ajet"]["trainer_common"]
    for key, value in said.pop("algorithm").items():
        assert getattr(found.algorithm, key) == value, key
    assert found.use_kl_loss is False and set(said) == {"use_kl_loss"}
    loss = TokenLoss.from_settings(found, open_algorithm(of(name).ajet))
    assert loss.behaviour and loss.correction is None and loss.bounds is not None
    assert of(name).adapt_to_serve().ajet.trainer_common.importance_cap is None, (
        "the ratio already refers to the sampler"
    )


def test_the_yaml_wins_and_why_says_the_preset_otherwise(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "ajet:\n  backbone: local\n  trainer_common:\n    algorithm:\n      preset: minirl\n      clip_high: 0.5\n"
    )
    made = load_experiment(path)
    assert made.ajet.trainer_common.algorithm.clip_high == 0.5
    lines = "\n".join(explain_key(made, f"{KEY}.clip_high"))
    assert "→ x.yaml" in lines and "  minirl.yaml" in lines
    said = "\n".join(explain_key(made, f"{KEY}.policy_loss"))
    assert "policy_loss = minirl" in said and "→ minirl.yaml" in said and str(find_preset("minirl")) in said
    assert f"{KEY}.policy_loss" not in made.list_set_keys() and f"{KEY}.clip_high" in made.list_set_keys()
    assert made.list_idle_keys() == [], "what a preset says was not set by a person"
    other = load_experiment(path, overrides=["trainer_common.algorithm.preset=grpo", f"{KEY}.clip_low=0.3"])
    assert other.ajet.trainer_common.algorithm.policy_loss == "clipped"
    assert other.ajet.trainer_common.algorithm.clip_low == 0.3
    again = Experiment.from_text(other.dump_resolved(), tmp_path / "again.yaml", root=tmp_path)
    assert again.list_training_settings() == other.list_training_settings()
    assert load_experiment(path, overrides=[f"{KEY}.preset=null"]).ajet.trainer_common.algorithm.policy_loss is None


def test_a_name_that_is_none_or_comes_too_late_is_refused(tmp_path):
    assert set(NAMES) == set(AlgorithmConfig.model_fields["preset"].annotation.__args__[0].__args__)
    with pytest.raises(ConfigError, match="one of minirl, grpo"):
        of("minrl")
    path = tmp_path / "x.yaml"
    path.write_text("mine: minirl\najet: {trainer_common: {algorithm: {preset: '${mine}'}}}\n")
    with pytest.raises(ConfigError, match="is set by an interpolation or a default"):
        load_experiment(path)


def ready(backbone: str, mode: str, times: int = 2, **more: bool) -> None:
    tree = {"ajet": {"model": {"path": "embedded:tiny"}, "task_reader": {"type": "random_dummy"}}}
    tree["ajet"] |= {"backbone": backbone, "rollout": {"user_workflow": "w.py->W"}}
    tree["ajet"]["trainer_common"] = {"mode": mode, "algorithm": {"max_trained_count": times, "retrained_interval": 2}}
    Experiment.from_dict(tree, base=Path("/somewhere")).require_ready(**more)


def test_training_twice_is_refused_where_no_group_waits_for_a_second_step():
    assert of("grpo", max_trained_count=2).ajet.trainer_common.algorithm.max_trained_count == 2
    for backbone, mode in (("local", "sync"), ("verl", "separate_async"), ("trinity", "sync")):
        ready(backbone, mode, 1)
        with pytest.raises(ConfigError, match=f"only once on {backbone}, in mode: {mode}"):
            ready(backbone, mode)
    with pytest.raises(ConfigError, match="only once in ajet serve"):
        ready("local", "async", serving=True)
    for backbone in ("local", "verl", "trinity"):
        ready(backbone, "async")


def test_who_only_looks_at_a_yaml_for_samplers_is_not_refused_what_their_trainer_takes():
    """`ajet config validate` and `ajet doctor`: the launch may say `--from-store`."""
    for backbone in ("local", "verl", "trinity"):
        ready(backbone, "sync", previewing=True)
