"""What verl gets from a YAML: composed over the installed verl's own files, whose package is never imported."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ajet.cli import launcher
from ajet.config.document import list_leaves
from ajet.schema.errors import ConfigError, UserError
from ajet_verl.config import ModelLimits, compose_verl_config, layer, make_printable_config
from ajet_verl.config.credit import read_credit_settings
from ajet_verl.descriptor import LAYERS
from ajet_verl.settings import build_settings
from ajet_verl.train import require_one_sampling
from scripts.reference.configuration import defaults_yaml
from tests.support.verl_fixtures import experiment, nested, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.slow]


def at(tree, dotted):
    for name in dotted.split("."):
        tree = tree[name]
    return tree


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL, REF = "actor_rollout_ref.model", "actor_rollout_ref.ref"
TC, ALGO, MEGATRON = "trainer_common", "trainer_common.algorithm", "trainer_common.megatron"
TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
LINEAR = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]

MAPPED = [
    ("data.max_prompt_length", 100, "data.max_prompt_length", 100),
    ("data.max_response_length", 70, f"{ROLLOUT}.response_length", 70),
    ("data.train_batch_size", 64, "data.train_batch_size", 64),
    ("data.shuffle", True, "data.shuffle", False),
    ("seed", 7, "data.seed", 7),
    ("seed", 7, f"{ROLLOUT}.seed", 7),
    ("model.path", "org/name", f"{MODEL}.path", "org/name"),
    ("model.dtype", "float32", f"{ROLLOUT}.dtype", "float32"),
    ("model.dtype", "float32", f"{REF}.fsdp_config.mixed_precision.param_dtype", "fp32"),
    ("model.chat_template_kwargs", {"a": 1}, "data.apply_chat_template_kwargs", {"a": 1}),
    ("rollout.num_repeat", 6, f"{ROLLOUT}.n", 6),
    ("rollout.temperature", 0.5, f"{ROLLOUT}.temperature", 0.5),
    ("rollout.top_p", 0.5, f"{ROLLOUT}.top_p", 0.5),
    ("rollout.top_k", 5, f"{ROLLOUT}.top_k", 5),
    ("rollout.val_kwargs.num_repeat", 5, f"{ROLLOUT}.val_kwargs.n", 5),
    ("rollout.val_kwargs.temperature", 0.2, f"{ROLLOUT}.val_kwargs.temperature", 0.2),
    ("rollout.val_kwargs.do_sample", True, f"{ROLLOUT}.val_kwargs.do_sample", True),
    ("rollout.max_model_len", 9000, f"{ROLLOUT}.max_model_len", 9000),
    ("rollout.max_num_seqs", 99, f"{ROLLOUT}.max_num_seqs", 99),
    ("rollout.tensor_model_parallel_size", 4, f"{ROLLOUT}.tensor_model_parallel_size", 4),
    ("rollout.gpu_memory_utilization", 0.8, f"{ROLLOUT}.gpu_memory_utilization", 0.8),
    ("rollout.name", "sglang", f"{ROLLOUT}.name", "sglang"),
    (f"{TC}.gradient_checkpointing", True, f"{MODEL}.enable_gradient_checkpointing", True),
    (f"{TC}.gradient_checkpointing", False, f"{MODEL}.enable_gradient_checkpointing", False),
    (f"{TC}.strategy", "fsdp2", f"{ACTOR}.strategy", "fsdp2"),
    (f"{TC}.strategy", "fsdp2", f"{REF}.strategy", "fsdp2"),
    (f"{TC}.fsdp_config.param_offload", False, f"{ACTOR}.fsdp_config.param_offload", False),
    (f"{TC}.fsdp_config.param_offload", False, f"{REF}.fsdp_config.param_offload", False),
    (f"{TC}.fsdp_config.optimizer_offload", False, f"{ACTOR}.fsdp_config.optimizer_offload", False),
    (f"{TC}.ulysses_sequence_parallel_size", 4, f"{ACTOR}.ulysses_sequence_parallel_size", 4),
    (f"{TC}.ulysses_sequence_parallel_size", 4, f"{REF}.ulysses_sequence_parallel_size", 4),
    (f"{TC}.lora.rank", 8, f"{MODEL}.lora_rank", 8),
    (f"{TC}.lora.alpha", 32, f"{MODEL}.lora_alpha", 32),
    (f"{TC}.lora.target_modules", ["q_proj"], f"{MODEL}.target_modules", ["q_proj"]),
    (f"{TC}.optim.lr", 3e-5, f"{ACTOR}.optim.lr", 3e-5),
    (f"{TC}.optim.lr_schedule", "cosine", f"{ACTOR}.optim.lr_scheduler_type", "cosine"),
    (f"{TC}.optim.lr_schedule", "linear", f"{ACTOR}.optim.lr_scheduler_type", "constant"),
    (f"{TC}.optim.lr_schedule", "linear", "trainer.ajet_lr_schedule", "linear"),
    (f"{TC}.optim.lr_warmup_steps", 5, f"{ACTOR}.optim.lr_warmup_steps", 5),
    (f"{TC}.optim.min_lr_ratio", 0.1, f"{ACTOR}.optim.min_lr_ratio", 0.1),
    (f"{TC}.optim.weight_decay", 0.1, f"{ACTOR}.optim.weight_decay", 0.1),
    (f"{TC}.optim.betas", [0.8, 0.9], f"{ACTOR}.optim.betas", [0.8, 0.9]),
    (f"{TC}.optim.eps", 1e-6, f"{ACTOR}.optim.override_optimizer_config.eps", 1e-6),
    (f"{TC}.optim.grad_clip", 0.3, f"{ACTOR}.optim.clip_grad", 0.3),
    (f"{TC}.optim.grad_clip", None, f"{ACTOR}.optim.clip_grad", float("inf")),
    (f"{TC}.use_kl_loss", False, f"{ACTOR}.use_kl_loss", False),
    (f"{TC}.kl_loss_coef", 0.5, f"{ACTOR}.kl_loss_coef", 0.5),
    (f"{TC}.kl_loss_type", "k2", f"{ACTOR}.kl_loss_type", "k2"),
    (f"{ALGO}.adv_estimator", "rloo", "algorithm.adv_estimator", "rloo"),
    (f"{ALGO}.norm_adv_by_std", False, "algorithm.norm_adv_by_std_in_grpo", False),
    (f"{ALGO}.clip_low", 0.1, f"{ACTOR}.clip_ratio_low", 0.1),
    (f"{ALGO}.clip_high", 0.3, f"{ACTOR}.clip_ratio_high", 0.3),
    (f"{ALGO}.clip_dual", 4.0, f"{ACTOR}.clip_ratio_c", 4.0),
    (f"{ALGO}.clip_dual", None, f"{ACTOR}.clip_ratio_c", 1e9),
    (f"{ALGO}.loss_aggregation", "token", f"{ACTOR}.loss_agg_mode", "token-mean"),
    (f"{ALGO}.loss_aggregation", "sequence", f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean"),
    (f"{ALGO}.loss_aggregation", "sequence-sum", f"{ACTOR}.loss_agg_mode", "seq-mean-token-sum-norm"),
    (f"{ALGO}.is_cap", 3.0, "algorithm.rollout_correction.rollout_is", "token"),
    (f"{ALGO}.is_cap", 3.0, "algorithm.rollout_correction.rollout_is_threshold", 3.0),
    (f"{ALGO}.is_cap", None, "algorithm.rollout_correction.rollout_is", None),
    (f"{ALGO}.use_kl_in_reward", True, "algorithm.use_kl_in_reward", True),
    (f"{ALGO}.kl_in_reward_coef", 0.5, "algorithm.kl_ctrl.kl_coef", 0.5),
    (f"{ALGO}.dynamic_sampling", True, "algorithm.filter_groups.enable", True),
    (f"{TC}.total_epochs", 3, "trainer.total_epochs", 3),
    (f"{TC}.total_training_steps", 9, "trainer.total_training_steps", 9),
    (f"{TC}.val_before_train", True, "trainer.val_before_train", True),
    (f"{TC}.test_freq", 4, "trainer.test_freq", 4),
    (f"{TC}.save_freq", 4, "trainer.save_freq", 4),
    (f"{TC}.save_freq", -1, "trainer.save_freq", 1000000000),
    (f"{TC}.max_checkpoints_to_keep", 9, "trainer.max_actor_ckpt_to_keep", None),
    (f"{TC}.logger", "wandb", "trainer.logger", []),
    (f"{TC}.nnodes", 2, "trainer.nnodes", 2),
    (f"{TC}.n_gpus_per_node", 4, "trainer.n_gpus_per_node", 4),
    (f"{TC}.device", "auto", "trainer.device", "cuda"),
    (f"{TC}.device", "npu", "trainer.device", "npu"),
    (f"{TC}.mode", "colocate_async", "trainer.v1.trainer_mode", "ajet_colocate_async"),
    (f"{TC}.mode", "async", "trainer.v1.trainer_mode", "ajet_async"),
    (f"{TC}.max_staleness", 2, "trainer.v1.sampler.max_off_policy_threshold", 3),
    (f"{TC}.max_staleness", None, "trainer.v1.sampler.max_off_policy_threshold", None),
    (f"{TC}.max_staleness_strategy", "wait", "trainer.v1.sampler.max_off_policy_strategy", "wait"),
    (f"{TC}.resume", "never", "trainer.resume_mode", "disable"),
    (f"{TC}.resume", "/x/global_step_5", "trainer.resume_mode", "resume_path"),
    (f"{TC}.resume", "/x/global_step_5", "trainer.resume_from_path", "/x/global_step_5"),
    (f"{TC}.resume", "auto", "trainer.resume_from_path", None),
    (f"{TC}.checkpoint_base_dir", "/big disk", "trainer.default_local_dir", "/big disk/e/verl"),
    ("project_name", "p", "trainer.project_name", "p"),
    ("experiment_name", "e", "trainer.experiment_name", "e"),
    (f"{TC}.mini_batch_num", 2, "trainer.v1.separate_async.parameter_sync_step", 2),
]  # fmt: skip
"""Our key, a value, verl's key, its value."""

MAPPED_TO_MEGATRON = [
    (f"{MEGATRON}.tensor_model_parallel_size", 4, f"{ACTOR}.megatron.tensor_model_parallel_size", 4),
    (f"{MEGATRON}.tensor_model_parallel_size", 4, f"{REF}.megatron.tensor_model_parallel_size", 4),
    (f"{MEGATRON}.pipeline_model_parallel_size", 2, f"{ACTOR}.megatron.pipeline_model_parallel_size", 2),
    (f"{MEGATRON}.context_parallel_size", 2, f"{ACTOR}.megatron.context_parallel_size", 2),
    (f"{MEGATRON}.expert_model_parallel_size", 8, f"{ACTOR}.megatron.expert_model_parallel_size", 8),
    (f"{TC}.fsdp_config.param_offload", False, f"{ACTOR}.megatron.param_offload", False),
    (f"{TC}.gradient_checkpointing", True, f"{TRANSFORMER}.recompute_granularity", "full"),
    (f"{TC}.gradient_checkpointing", False, f"{TRANSFORMER}.recompute_num_layers", None),
    (f"{TC}.optim.lr_schedule", "linear", f"{ACTOR}.optim.lr_decay_style", "linear"),
    (f"{TC}.optim.min_lr_ratio", 0.5, f"{ACTOR}.optim.min_lr", 5e-7),
    (f"{TC}.optim.eps", 1e-6, f"{ACTOR}.optim.override_optimizer_config.adam_eps", 1e-6),
    (f"{TC}.lora.rank", 8, f"{MODEL}.lora.rank", 8),
    (f"{TC}.lora.target_modules", "all-linear", f"{MODEL}.lora.target_modules", LINEAR),
]  # fmt: skip


def rounds(cases):
    """The cases in as few experiments as can hold them: each key has one value in each."""
    while cases:
        settings, now, later = {}, [], []
        for case in cases:
            key, value = case[:2]
            (now if settings.setdefault(key, value) == value else later).append(case)
        yield settings, now
        cases = later


@pytest.mark.parametrize(
    ("cases", "strategy"), [(MAPPED, {}), (MAPPED_TO_MEGATRON, {f"{TC}.strategy": "megatron", f"{TC}.nnodes": 8})]
)
def test_each_key_of_ours_reaches_verls(cases, strategy):
    for settings, now in rounds(cases):
        tree = compose_verl_config(experiment({**strategy, **settings}))
        assert {verl: at(tree, verl) for _, _, verl, _ in now} == {verl: expected for _, _, verl, expected in now}
        assert tree["model_engine"] == ("megatron" if strategy else "dp")


@pytest.mark.parametrize(
    ("cap", "ours", "verls", "found"),
    [
        ("auto", "sync", None, None),
        ("auto", "colocate_async", None, 2.0),
        ("auto", "async", None, 2.0),
        ("auto", "sync", "ajet_colocate_async", 2.0),
        ("auto", "colocate_async", "ajet_sync", None),
        (None, "sync", "ajet_colocate_async", None),
        (3.0, "sync", "ajet_colocate_async", 3.0),
    ],
)
def test_stale_tokens_are_capped_by_the_mode_that_verl_trains_in_whoever_chose_it(cap, ours, verls, found):
    verl = {"trainer": {"v1": {"trainer_mode": verls}}} if verls else {}
    tree = compose_verl_config(experiment({f"{ALGO}.is_cap": cap, f"{TC}.mode": ours}, verl=verl))
    assert at(tree, "algorithm.rollout_correction.rollout_is") == (None if found is None else "token")
    assert read_credit_settings(tree).trainer_common.importance_cap == found


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"rollout.max_model_len": 9000}, 9000),
        ({f"{TC}.micro_batch_tokens": 20000}, 20000),
        ({f"{TC}.ulysses_sequence_parallel_size": 4}, 4500),
        ({f"{TC}.strategy": "megatron", f"{MEGATRON}.context_parallel_size": 2}, 9000),
    ],
)
def test_a_pass_on_a_gpu_holds_its_part_of_the_longest_sequence(settings, tokens):
    tree = compose_verl_config(experiment(settings))
    assert at(tree, f"{ACTOR}.ppo_max_token_len_per_gpu") == tokens
    assert at(tree, f"{ROLLOUT}.log_prob_max_token_len_per_gpu") == tokens
    assert at(tree, f"{REF}.log_prob_max_token_len_per_gpu") == tokens


def test_mini_batches_are_counted_in_tasks_and_adapters_have_one_place():
    tree = compose_verl_config(
        experiment({"data.train_batch_size": 48, f"{TC}.mini_batch_num": 3, f"{TC}.lora.rank": 8})
    )
    assert at(tree, f"{ACTOR}.ppo_mini_batch_size") == 16
    assert at(tree, f"{MODEL}.lora_rank") == 8 and at(tree, f"{MODEL}.lora.rank") == 0


DENSE = ModelLimits(linear_layers=("down_proj", "q_proj", "up_proj"))
LORA = {f"{TC}.lora.rank": 8}


@pytest.mark.parametrize(
    ("settings", "model", "served"),
    [
        (LORA, DENSE, ["down_proj", "q_proj", "up_proj"]),
        ({**LORA, f"{TC}.mode": "colocate_async", f"{TC}.lora.target_modules": ["q_proj"]}, DENSE, ["q_proj"]),
        ({}, DENSE, None),
        (LORA, ModelLimits(), None),
        (LORA, replace(DENSE, experts=8), None),
        (LORA, replace(DENSE, images=True), None),
        ({**LORA, f"{TC}.lora.target_modules": ["lm_head"]}, DENSE, None),
        ({**LORA, f"{TC}.lora.target_modules": ".*proj"}, DENSE, None),
        ({**LORA, f"{TC}.lora.rank": 1024}, DENSE, None),
        ({**LORA, "rollout.name": "sglang"}, DENSE, None),
        ({**LORA, f"{TC}.strategy": "megatron"}, DENSE, None),
        ({**LORA, f"{TC}.mode": "separate_async"}, DENSE, None),
    ],
)
def test_servers_get_adapters_where_verl_can(settings, model, served):
    """Else merged weights."""
    apart = {"nnodes": 1, "checkpoint_engine": {"backend": "nccl"}}
    own = {"verl": {"actor_rollout_ref": {"rollout": apart}}} if "separate_async" in settings.values() else {}
    tree = compose_verl_config(experiment(settings, **own), model=model)
    assert at(tree, f"{MODEL}.lora.merge") is (served is None)
    assert at(tree, f"{ROLLOUT}.engine_kwargs.vllm.lora_target_modules") == served


def test_checkpoints_lie_in_the_run_directory():
    plain = experiment()
    assert compose_verl_config(plain)["trainer"]["default_local_dir"] == str(
        plain.root / "experiment" / "checkpoints" / "verl"
    )
    tree = compose_verl_config(plain, run_folder=Path("/runs here/experiment-2"), model_folder=Path("/m"))
    assert tree["trainer"]["default_local_dir"] == "/runs here/experiment-2/checkpoints/verl"
    assert tree["trainer"]["experiment_name"] == "experiment-2" and at(tree, "actor_rollout_ref.model.path") == "/m"


def test_the_users_sections_win_and_may_refer_to_everything():
    tree = compose_verl_config(
        experiment(
            {"data.train_batch_size": 48},
            mine={"steps": 5},
            data={"users": "own"},
            verl={
                "trainer": {"critic_warmup": "${mine.steps}", "nnodes": 2},
                "actor_rollout_ref": {
                    "rollout": {"enable_sleep_mode": False, "max_num_seqs": "${data.train_batch_size}"},
                },
            },
            actor_rollout_ref={"actor": {"ppo_mini_batch_size": "${ajet.data.train_batch_size}", "entropy_coeff": 0.1}},
            algorithm={"norm_adv_by_std_in_grpo": False},
        )
    )  # fmt: skip
    assert at(tree, "trainer.critic_warmup") == 5 and at(tree, "trainer.nnodes") == 2
    assert at(tree, "actor_rollout_ref.rollout.max_num_seqs") == 48
    assert at(tree, "actor_rollout_ref.rollout.enable_sleep_mode") is False
    assert at(tree, "actor_rollout_ref.actor.ppo_mini_batch_size") == 48
    assert at(tree, "actor_rollout_ref.actor.entropy_coeff") == 0.1
    assert tree["algorithm"]["norm_adv_by_std_in_grpo"] is False
    assert set(tree) == set(layer.ROOTS) and "users" not in tree["data"]


def test_nothing_is_left_to_resolve_and_verls_roots_are_all_there():
    for strategy in ("fsdp", "megatron"):
        folder = layer.find_config_folder("verl")
        assert folder is not None and set(layer.compose_verls_defaults(folder, strategy == "megatron")) == set(
            layer.ROOTS
        )
        tree = compose_verl_config(experiment({"trainer_common.strategy": strategy}))
        open_ends = [
            path for path, value in list_leaves(tree) if isinstance(value, str) and value.startswith(("${", "???"))
        ]
        assert open_ends == [("reward", "reward_model", "rollout", "name")]  # verl's own; no reward model is used


def test_an_interpolation_that_leads_nowhere_names_its_place():
    with pytest.raises(ConfigError) as caught:
        compose_verl_config(experiment(verl=nested("trainer.project_name", "${nowhere.at_all}")))
    assert "nowhere" in caught.value.what and "experiment.yaml:" in caught.value.where


def test_keys_that_nothing_of_verl_reads_are_refused_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        compose_verl_config(experiment(trainer={"total_epochz": 3}))
    assert caught.value.what == "verl has no key trainer.total_epochz." and "experiment.yaml:" in caught.value.where
    assert caught.value.do == "did you mean trainer.total_epochs?"
    with pytest.raises(
        ConfigError, match=r"2 settings(.|\n)*no key actor_rollout_ref\.rollot(.|\n)*no key data\.train_fles"
    ):
        compose_verl_config(experiment(verl={"actor_rollout_ref": {"rollot": {"n": 1}}, "data": {"train_fles": ["a"]}}))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("trainer.epochs", "trainer.total_epochs"),
        (f"{ROLLOUT}.nn", f"{ROLLOUT}.n"),
        (f"{ACTOR}.mini_batch", f"{ACTOR}.ppo_mini_batch_size"),
        ("trainer.clip_ratio", f"{ACTOR}.clip_ratio"),
        ("data.n", f"{ROLLOUT}.n"),
        (f"{ACTOR}.policy_loss.foo", ""),
        ("trainer.v1.sampler.max", ""),
    ],
)
def test_a_name_known_elsewhere_is_refused(key, near):
    with pytest.raises(ConfigError) as caught:
        compose_verl_config(experiment(verl=nested(key, 1)))
    assert key in caught.value.what and "experiment.yaml:" in caught.value.where
    assert f"verl.{near}?" in caught.value.do if near else "docs/reference/verl_keys.md" in caught.value.do


@pytest.mark.parametrize(
    "key",
    [
        *(f"{ROLLOUT}.enable_sleep_mode", f"{ACTOR}.fsdp_config.model_dtype", "trainer.remove_previous_ckpt_in_save"),
        *("data.image_patch_size", f"{ACTOR}.entropy_checkpointing", "trainer.v1.sync.any_name"),
    ],
)
def test_what_verl_reads_without_a_default_is_taken(key):
    assert at(compose_verl_config(experiment(verl=nested(key, 1))), key) == 1


def test_what_verl_hands_on_may_hold_anything():
    handed_on = {
        "actor_rollout_ref": {
            "rollout": {"engine_kwargs": {"vllm": {"zzz_made_up": 1}}, "enable_sleep_mode": False},
            "model": {"override_config": {"zzz_made_up": 1}},
        },
        "ray_kwargs": {"ray_init": {"zzz_made_up": 1}},
        "trainer": {"remove_previous_ckpt_in_save": True},
    }
    tree = compose_verl_config(experiment(verl=handed_on))
    assert at(tree, f"{ROLLOUT}.engine_kwargs.vllm.zzz_made_up") == 1
    assert tree["trainer"]["remove_previous_ckpt_in_save"] is True


def test_another_version_of_verl_is_refused(monkeypatch):
    monkeypatch.setattr(layer.metadata, "version", lambda name: "0.8.0")
    with pytest.raises(UserError, match="verl 0.8.0 is installed"):
        compose_verl_config(experiment())


def test_every_key_that_a_layer_names_exists():
    schema = yaml.safe_load(defaults_yaml())
    schema["ajet"] |= {"val_repeats": 1, "verl_layers": "", "sees_images": False}  # what the layer adds
    schema["ajet"] |= {"merges_adapters": True, "served_layers": None}
    for path in sorted(LAYERS.glob("*.yaml")):
        for key in set(re.findall(r"\$\{(ajet\.[a-z_0-9.]+)[}\[]", path.read_text())):
            at(schema, key)


def test_secrets_and_the_environment_are_not_shown(monkeypatch):
    monkeypatch.setenv("VERL_TEST_PLACE", "a private place")
    plain = experiment(
        verl={
            "trainer": {"default_hdfs_dir": "${oc.env:VERL_TEST_PLACE}"},
            "ray_kwargs": {"ray_init": {"_redis_password": "pw"}},
        }
    )
    tree = compose_verl_config(plain)
    assert tree["trainer"]["default_hdfs_dir"] == "a private place"
    text = str(make_printable_config(plain, tree))
    assert "a private place" not in text and "'pw'" not in text and "${oc.env:VERL_TEST_PLACE}" in text


def test_the_model_at_hand_bounds_the_lengths():
    with pytest.raises(ConfigError, match=r"max_model_len is 1000000, .* \d+ tokens"):
        build_settings(experiment({"model.path": "embedded:tiny-tools", "rollout.max_model_len": 1000000}))
    build_settings(experiment({"model.path": "./no-such-model"}))


def test_the_commands_show_and_check_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.yaml").write_text(
        "ajet:\n  model: {path: org/model}\n  task_reader: {type: random_dummy}\n  rollout: {user_workflow: w.py->W}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    (tmp_path / "w.py").write_text("class W: ...\n")
    eight = ["trainer_common.n_gpus_per_node=8", "trainer_common.device=cuda"]
    eight += ["trainer_common.ulysses_sequence_parallel_size=16"]

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            launcher.main(["config", arguments[0], "--conf", "x.yaml", "--backbone", "verl", *arguments[1:]])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    code, out, _ = run("show", "rollout.num_repeat=8")
    ours, verls = yaml.safe_load_all(out)
    assert code == 0 and ours["ajet"]["rollout"]["num_repeat"] == 8 and verls["actor_rollout_ref"]["rollout"]["n"] == 8
    code, out, _ = run("validate", "trainer_common.mode=colocate_async")
    assert code == 0 and "x.yaml is valid" in out
    code, _, err = run("validate", *eight, "trainer_common.nnodes=3")
    assert code == 2 and "24 GPUs cannot be divided" in err and "override trainer_common.nnodes=3" in err
    with pytest.raises(SystemExit):
        launcher.main(["--conf", "x.yaml", "--backbone", "verl", "--dry-run", *eight, "trainer_common.nnodes=3"])
    assert "24 GPUs cannot be divided" in capsys.readouterr().err
    code, _, err = run("validate", *eight, "verl.trainer.nnodes=3")
    assert code == 2 and "24 GPUs cannot be divided" in err


def test_neither_verl_nor_ray_nor_torch_is_imported_for_it():
    code = (
        "import sys; from ajet_verl.settings import build_settings; "
        "from tests.support.verl_fixtures import experiment; build_settings(experiment()); "
        "print([name for name in ('verl', 'ray', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_processes_of_verl_and_vllm_compose_no_configuration():
    """Each imports something of ours, and there are many of them."""
    code = (
        "import sys; import ajet_ray.mailbox, ajet_verl.cpu.vllm_plugin; "
        "print([name for name in ('ajet.config.compose', 'omegaconf', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(("ours", "verls"), [("temperature", "temperature"), ("num_repeat", "n")])
def test_samplers_play_what_verl_trains_on_whoever_says_so(ours, verls):
    same = experiment({f"{TC}.mode": "async", f"rollout.{ours}": 3})
    require_one_sampling(same.ajet, compose_verl_config(same))
    other = experiment({f"{TC}.mode": "async"}, verl={"actor_rollout_ref": {"rollout": {verls: 3}}})
    with pytest.raises(ConfigError, match=f"verl would train with {verls} 3") as refused:
        require_one_sampling(other.ajet, compose_verl_config(other))
    assert f"ajet.rollout.{ours}" in refused.value.do
