"""Trinity's configuration as our keys fill it, and what is refused before anything of Trinity is imported."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.schema.errors import ConfigError, MissingExtraError, UserError
from ajet.train.runner import LaunchOptions
from ajet_trinity.config import compose_trinity_config, compute_demand, refuse
from ajet_trinity.launch import TrinityRunner
from ajet_trinity.package import OWN_FOLDER, require_trinity
from ajet_trinity.users_section import OWNED, read_trinity_keys

ON_CPU = ", trainer_common: {device: cpu}"


def experiment(tmp_path, ajet: str = "", trinity: str = ""):
    yaml = tmp_path / "x.yaml"
    yaml.write_text(
        f"ajet: {{backbone: trinity, model: {{path: 'embedded:tiny-tools'}}{ajet}}}\ntrinity: {{{trinity}}}\n"
    )
    return load_experiment(yaml)


def test_our_keys_fill_trinitys(tmp_path):
    ajet = (
        ", data: {train_batch_size: 6, max_prompt_length: 100, max_response_length: 500}"
        ", rollout: {num_repeat: 5, temperature: 0.7, max_model_len: 400, tensor_model_parallel_size: 2}"
        ", trainer_common: {device: cuda, n_gpus_per_node: 8, trinity_only__n_vllm_engine: 2, total_training_steps: 9"
        ", save_freq: 4, use_kl_loss: true, optim: {lr: 0.5}}"
    )
    made = compose_trinity_config(experiment(tmp_path, ajet, "trainer: {max_token_len_per_gpu: 13000}"))
    assert made["buffer"]["batch_size"] == 6 and made["buffer"]["total_steps"] == made["trainer"]["total_steps"] == 9
    assert made["algorithm"]["repeat_times"] == 5 and made["algorithm"]["optimizer"]["lr"] == 0.5
    assert made["algorithm"]["algorithm_type"].endswith(".WithReference")
    assert made["algorithm"]["policy_loss_fn"].endswith(".WeightedTokensWithReference")
    assert made["model"]["temperature"] == 0.7 and made["model"]["max_model_len"] == 400
    assert made["model"]["max_prompt_tokens"] + made["model"]["max_response_tokens"] == 400
    assert made["explorer"]["rollout_model"]["engine_num"] == 2 and made["trainer"]["save_interval"] == 4
    assert made["trainer"]["max_token_len_per_gpu"] == 13000, "the user's section wins"
    demand = compute_demand(made)
    assert demand.accelerators == 8 and demand.serving == (1, 4) and demand.training == (1, 4)
    assert made["synchronizer"]["sync_method"] == "nccl" and "ajet" not in made


def test_a_cpu_has_a_slot_for_the_engine_and_one_for_the_trainer(tmp_path):
    made = compose_trinity_config(experiment(tmp_path, ", trainer_common: {device: cpu, use_kl_loss: false}"))
    assert compute_demand(made).accelerators == 2 and made["synchronizer"]["sync_method"] == "memory"
    assert made["explorer"]["rollout_model"]["dtype"] == "float32"
    assert made["algorithm"]["policy_loss_fn"].endswith(".WeightedTokens")


def test_the_tutorials_yaml_as_it_is():
    yaml = Path(__file__).resolve().parents[3] / "tutorial" / "example_math_agent" / "math_agent.yaml"
    made = compose_trinity_config(load_experiment(yaml, backbone="trinity", overrides=["trainer_common.device=cuda"]))
    assert made["explorer"]["rollout_model"]["engine_num"] == 2 and compute_demand(made).training == (1, 6)
    assert made["trainer"]["max_token_len_per_gpu"] == 13000 and made["buffer"]["batch_size"] == 264


def test_without_it_or_with_another_version_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing")])
    with pytest.raises(MissingExtraError, match="The trinity backbone needs the package trinity-rft"):
        require_trinity()
    about = tmp_path / OWN_FOLDER / "trinity_rft-0.5.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trinity-rft\nVersion: 0.5.2\n")
    with pytest.raises(UserError, match=r"trinity-rft 0\.5\.2 is installed"):
        require_trinity()


def test_trinitys_server_without_a_key_is_never_started(tmp_path):
    """Its server asks nobody for a key and listens on the node's address."""
    made = compose_trinity_config(experiment(tmp_path))
    assert made["explorer"]["rollout_model"]["enable_openai_api"] is False
    with pytest.raises(ConfigError, match=r"trinity\.explorer\.rollout_model\.enable_openai_api itself"):
        compose_trinity_config(experiment(tmp_path, "", "explorer: {rollout_model: {enable_openai_api: true}}"))


@pytest.mark.parametrize(
    ("ajet", "trinity", "said"),
    [
        (", trainer_common: {mini_batch_num: 2}", "", "one optimizer step"),
        (", trainer_common: {ulysses_sequence_parallel_size: 2}", "", "split sequences"),
        (", trainer_common: {lora: {rank: 4}}", "", "adapters"),
        (", trainer_common: {optim: {lr_schedule: linear}}", "", "no linear learning-rate schedule"),
        (", trainer_common: {algorithm: {use_kl_in_reward: true}}", "", "computes advantages before"),
        (", trainer_common: {strategy: megatron}", "", "Megatron"),
        (
            ", trainer_common: {n_gpus_per_node: 2}, rollout: {n_vllm_engine: 2}",
            "",
            "leave no GPU for the trainer; there are 2",
        ),
        (", rollout: {n_vllm_engine: 2}, trainer_common: {trinity_only__n_vllm_engine: 3}", "", "n_vllm_engine is 3"),
        (", trainer_common: {device: cpu}, rollout: {tensor_model_parallel_size: 2}", "", "only its first worker"),
        (", trainer_common: {device: cpu}, rollout: {name: sglang}", "", "SGLang engine"),
        (", trainer_common: {device: cuda, n_gpus_per_node: 2}, rollout: {name: sglang}", "", "SGLang engine"),
        (", trainer_common: {device: mps}", "", "does not train on 'mps'"),
        ("", "algorithm: {repeat_times: 3}", r"set ajet\.rollout\.num_repeat"),
        ("", "explorer: {max_repeat_times_per_runner: 1}", "max_repeat_times_per_runner itself"),
        ("", "explorer: {max_retry_times: 2}", r"set ajet\.rollout\.max_retries"),
        ("", "synchronizer: {explorer_sync_interval: 2}", "explorer_sync_interval itself"),
    ],
)
def test_what_cannot_hold_is_refused_by_its_name(tmp_path, ajet, trinity, said):
    with pytest.raises(ConfigError, match=said):
        compose_trinity_config(experiment(tmp_path, ajet, trinity))


def test_secrets_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("TRINITY_TEST_KEY", "a private key")
    secrets = "explorer: {env_vars: {OPENAI_API_KEY: plainly, PLACE: ['${oc.env:TRINITY_TEST_KEY}']}}"
    secrets += ", model: {custom_chat_template: '${oc.env:TRINITY_TEST_KEY}'}"
    given = experiment(tmp_path, ", trainer_common: {device: cpu}", secrets)
    assert compose_trinity_config(given)["explorer"]["env_vars"] == {
        "OPENAI_API_KEY": "plainly",
        "PLACE": ["a private key"],
    }
    text = TrinityRunner().shown(given)
    assert "a private key" not in text and "plainly" not in text and "${oc.env:TRINITY_TEST_KEY}" in text


def test_every_wrong_key_is_named_at_once(tmp_path):
    wrong = experiment(
        tmp_path, ", trainer_common: {device: cpu, mini_batch_num: 2}", "mode: serve, buffer: {batch_size: 1}"
    )
    with pytest.raises(ConfigError) as refused:
        refuse(wrong, "cpu")
    assert all(key in str(refused.value) for key in ("mini_batch_num", "trinity.mode", "trinity.buffer.batch_size"))


@pytest.mark.parametrize(("mode", "expected"), [("explore", "`ajet sample`"), ("train", "train with --from-store")])
def test_a_mode_of_one_side_is_refused_with_the_reason_and_what_does_it(tmp_path, mode, expected):
    with pytest.raises(ConfigError) as refused:
        refuse(experiment(tmp_path, ", trainer_common: {device: cpu}", f"mode: {mode}"), "cpu")
    assert refused.value.expected.startswith(expected) and "rows as used when they are read" in refused.value.expected
    assert "sample --conf FILE.yaml --store sqlite:PATH" in refused.value.do and "--from-store" in refused.value.do


def test_where_samplers_play_trinity_trains_alone_and_saves_each_step(tmp_path):
    asynchronous = ", trainer_common: {device: cpu, mode: async, save_freq: 7}"
    made = compose_trinity_config(experiment(tmp_path, asynchronous, "mode: train"))
    assert made["mode"] == "train" and made["algorithm"]["sample_strategy"].endswith(".StoreGroups")
    assert made["trainer"]["save_interval"] == 1, "what is announced is on the disk"
    assert compute_demand(made).accelerators == 1 and compute_demand(made).training == (1, 1)
    with pytest.raises(ConfigError, match="trinity.mode is 'both'"):
        compose_trinity_config(experiment(tmp_path, asynchronous, "mode: both"))
    whole = experiment(tmp_path, ", trainer_common: {device: cuda, n_gpus_per_node: 2, mode: async}")
    assert compute_demand(compose_trinity_config(whole)).training == (1, 2), "no engine takes one of its GPUs"
    with pytest.raises(ConfigError, match="no store is set") as refused:
        TrinityRunner().check(whole)
    assert "--from-store ADDRESS" in refused.value.expected


def test_a_port_that_no_gateway_could_have_is_said_before_ray_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = f", gateway: {{port: {taken.getsockname()[1]}}}"
        with pytest.raises(UserError, match="gateway cannot listen on 127.0.0.1"):
            TrinityRunner().require(experiment(tmp_path, gateway + ON_CPU), LaunchOptions())
    TrinityRunner().require(experiment(tmp_path, gateway + ON_CPU), LaunchOptions())
    many = gateway + ON_CPU.replace("cpu", "cuda, n_gpus_per_node: 2") + ", rollout: {max_env_worker: 32}"
    monkeypatch.setattr("ajet_trinity.launch.find_python", lambda device: None)
    with pytest.raises(ConfigError, match="32 processes run episodes"):
        TrinityRunner().require(experiment(tmp_path, many), LaunchOptions())


def test_keys_that_trinity_does_not_have(tmp_path):
    known = read_trinity_keys()
    if not known:
        pytest.skip("Trinity-RFT is not installed")
    with pytest.raises(ConfigError, match="Trinity has no key trainer.max_token_len_per_gpuu"):
        compose_trinity_config(experiment(tmp_path, "", "trainer: {max_token_len_per_gpuu: 1}"))
    for key in OWNED:
        kind = "Config"
        for name in key.split("."):
            assert name in known[kind], f"Trinity has no {key}"
            kind = known[kind][name]


def test_nothing_of_trinity_is_imported_for_it(tmp_path):
    asked = experiment(tmp_path)
    before = set(sys.modules)
    compose_trinity_config(asked)
    assert not [name for name in set(sys.modules) - before if name.partition(".")[0] in ("trinity", "ray", "verl")]
