"""What verl would refuse after minutes is refused at once, in the user's words; verl need not be installed."""

from __future__ import annotations

import json
import re

import pytest

from ajet.schema.commands import format_extra_install
from ajet.schema.errors import ConfigError, MissingExtraError, UserError
from ajet_ray.resolvers import as_list, div, mul, pick, room, versions
from ajet_verl.config import ModelLimits, compose_verl_config, layer, read_limits
from tests.support.verl_fixtures import experiment, nested

pytestmark = [pytest.mark.verl, pytest.mark.slow]

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
QWEN = ModelLimits(positions=32768, heads=16, kv_heads=8)
MEGATRON, FSDP2 = {"trainer_common.strategy": "megatron"}, {"trainer_common.strategy": "fsdp2"}
SIX = {"trainer_common.nnodes": 3, "rollout.tensor_model_parallel_size": 6, "data.train_batch_size": 48}


@pytest.fixture(autouse=True)
def no_verl(monkeypatch):
    """As on a machine without verl: what passes the refusals ends in MissingExtraError."""
    monkeypatch.setattr(layer, "find_config_folder", lambda _: None)


def refusal(ajet=None, *, model=QWEN, **roots) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compose_verl_config(experiment(ajet, **roots), model=model)
    return caught.value


def passes(ajet=None, *, model=QWEN, **roots) -> None:
    with pytest.raises(MissingExtraError, match="verl"):
        compose_verl_config(experiment(ajet, **roots), model=model)


def test_the_defaults_pass_and_verl_is_asked_for_by_its_extra():
    passes()
    passes({**MEGATRON, "trainer_common.megatron.tensor_model_parallel_size": 4})
    passes({"trainer_common.device": "cpu", "trainer_common.n_gpus_per_node": 1})


@pytest.mark.parametrize(
    ("ajet", "device", "extra"),
    [
        ({}, "cuda", "verl"),
        ({}, "cpu", "verl-cpu"),
        ({"trainer_common.device": "cpu"}, "cuda", "verl-cpu"),
        ({"trainer_common.device": "cuda"}, "cpu", "verl"),
    ],
)
def test_the_extra_is_the_one_for_the_device(ajet, device, extra):
    with pytest.raises(MissingExtraError) as caught:
        compose_verl_config(experiment(ajet), device=device)
    assert caught.value.do == format_extra_install(extra)


def test_episodes_need_not_divide_by_the_copies_of_the_model():
    passes({"data.train_batch_size": 3, "rollout.num_repeat": 3})
    passes({"data.train_batch_size": 16, "trainer_common.mini_batch_num": 16})
    passes({"data.train_batch_size": 1, "rollout.num_repeat": 1, "trainer_common.nnodes": 3})


@pytest.mark.parametrize(
    ("ajet", "said"),
    [
        ({"data.train_batch_size": 6, "trainer_common.mini_batch_num": 4}, "6 tasks .* 4 mini-batches"),
        ({"trainer_common.ulysses_sequence_parallel_size": 3}, "8 GPUs cannot be divided into groups of 3"),
        ({"trainer_common.n_gpus_per_node": 0}, "no GPU to train on"),
        ({"rollout.tensor_model_parallel_size": 3}, "engines of 3 GPUs"),
        ({"rollout.tensor_model_parallel_size": 16, "trainer_common.nnodes": 1}, "engines of 16 GPUs"),
        ({"rollout.max_num_seqs": 9000}, "9000 sequences"),
        ({"data.max_prompt_length": 18000}, "leaves no room for a reply in 18000"),
        ({"rollout.temperature": 0}, "temperature 0 have no probabilities"),
        ({"trainer_common.lora.alpha": 1.5}, "an alpha of 1.5"),
        ({"trainer_common.device": "mps"}, "does not train on 'mps'"),
        ({"trainer_common.device": "cuda:1"}, "does not train on 'cuda:1'"),
        ({"trainer_common.device": "cpu", "rollout.name": "sglang"}, "sglang needs GPUs"),
        ({"trainer_common.device": "cpu", **MEGATRON}, "Megatron needs GPUs"),
        ({"trainer_common.resume": "runs/x/checkpoints/7"}, "not a checkpoint of verl"),
        ({"model.path": "m.gguf"}, ".gguf file"),
        ({"trainer_common.mode": "separate_async"}, "separate machines for the engines"),
        ({"trainer_common.megatron.context_parallel_size": 2}, "which fsdp cannot do"),
        ({**FSDP2, "trainer_common.megatron.pipeline_model_parallel_size": 2}, "which fsdp2 cannot do"),
        ({**MEGATRON, "trainer_common.ulysses_sequence_parallel_size": 2}, "by Ulysses"),
        ({**MEGATRON, "model.dtype": "float32"}, "bfloat16 with Megatron"),
        ({**MEGATRON, "trainer_common.megatron.pipeline_model_parallel_size": 3}, "groups of 3"),
        ({**MEGATRON, "trainer_common.megatron.expert_model_parallel_size": 3}, "groups of 3 .*expert"),
    ],
)  # fmt: skip
def test_settings_that_verl_does_not_take_are_named_with_their_place(ajet, said):
    error = refusal(ajet, model=ModelLimits())
    assert re.search(said, error.what), error.what
    assert "experiment.yaml:" in f"{error.where}{error.what}"


@pytest.mark.parametrize(
    ("ajet", "model", "said"),
    [
        ({"rollout.max_model_len": 40000}, QWEN, "is 40000, but the model supports 32768 tokens"),
        (SIX, QWEN, "16 attention heads (8 of keys and values) cannot be split over 6 GPUs"),
        ({"trainer_common.ulysses_sequence_parallel_size": 8}, ModelLimits(4096 * 8, heads=12), "12 attention heads"),
        ({**MEGATRON, "trainer_common.megatron.expert_model_parallel_size": 2}, QWEN, "no experts"),
    ],
)  # fmt: skip
def test_settings_that_the_model_does_not_take(ajet, model, said):
    assert said in refusal(ajet, model=model).what
    passes({key: value for key, value in ajet.items() if key in MEGATRON}, model=model)


REPLAY = {"actor": {"megatron": {"router_replay": {"mode": "R3"}}}, "rollout": {"enable_rollout_routing_replay": True}}
EXPERTS = ModelLimits(positions=32768, heads=16, kv_heads=8, experts=64)


@pytest.mark.parametrize(
    ("ajet", "verl", "model", "said"),
    [
        ({}, REPLAY, EXPERTS, "verl's FSDP does not replay"),
        (FSDP2, {"rollout": REPLAY["rollout"]}, EXPERTS, "verl's FSDP does not replay"),
        (MEGATRON, {"rollout": REPLAY["rollout"]}, EXPERTS, "one is set without the other"),
        (MEGATRON, {"actor": REPLAY["actor"]}, EXPERTS, "one is set without the other"),
        (MEGATRON, REPLAY, QWEN, "no experts to replay"),
        ({**MEGATRON, "trainer_common.mode": "async"}, REPLAY, EXPERTS, "come without their experts"),
    ],
)
def test_router_replay_is_refused_where_it_lacks(ajet, verl, model, said):
    assert said in str(refusal(ajet, model=model, verl={"actor_rollout_ref": verl}))


def test_adapters_for_separate_servers_are_refused():
    apart = {"nnodes": 1, "checkpoint_engine": {"backend": "nccl"}}
    own = {"model": {"lora": {"merge": False}}, "rollout": apart}
    lora = {"trainer_common.lora.rank": 8, "trainer_common.mode": "separate_async"}
    assert "sends no adapters" in refusal(lora, verl={"actor_rollout_ref": own}).what
    passes(lora, verl={"actor_rollout_ref": {"rollout": apart}})


def test_router_replay_passes_on_megatron():
    passes(MEGATRON, model=EXPERTS, verl={"actor_rollout_ref": REPLAY})
    passes({**MEGATRON, "trainer_common.mode": "colocate_async"}, model=EXPERTS, verl={"actor_rollout_ref": REPLAY})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (f"{ACTOR}.ppo_mini_batch_size", 7, "mini-batches of 7"),
        (f"{ACTOR}.ppo_mini_batch_size", "many", "'many'"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", 1000, "A pass of 1000 tokens"),
        (f"{ACTOR}.strategy", "megatron", "strategy is 'megatron', but ajet.trainer_common.strategy is fsdp"),
        (f"{ACTOR}.strategy", "veomni", "strategy is 'veomni'"),
        (f"{ACTOR}.use_dynamic_bsz", False, "verl needs actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        (f"{ROLLOUT}.pipeline_model_parallel_size", 2, "pipeline parallelism"),
        (f"{ROLLOUT}.expert_parallel_size", 2, "expert_parallel_size is 2"),
        (f"{ROLLOUT}.gpu_memory_utilization", 1.5, "is 1.5"),
        (f"{ROLLOUT}.agent.default_agent_loop", "tool_agent", "ajet.rollout.user_workflow"),
    ],
)
@pytest.mark.parametrize("below", ["verl.", ""])
def test_the_users_own_verl_sections_are_checked_by_the_names_used_there(key, value, said, below):
    error = refusal(**nested(f"{below}{key}", value))
    assert said in str(error)
    assert "experiment.yaml:" in str(error)


@pytest.mark.parametrize(
    ("ajet", "verl", "model", "said"),
    [
        ({}, {}, ModelLimits(positions=32768, images=True), "Rows with images"),
        ({}, {"model": {"use_fused_kernels": True}}, QWEN, "own forward pass"),
        ({}, {"actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2}}, QWEN, "by tokens, not by rows"),
        (MEGATRON, {}, QWEN, "Only the FSDP engine"),
    ],
)  # fmt: skip
def test_trees_are_refused_where_they_are_not_computed(ajet, verl, model, said):
    roots = {"verl": {"actor_rollout_ref": {"ajet_trees": True, **verl}}}
    assert said in str(refusal(ajet, model=model, **roots))
    passes({}, **{"verl": {"actor_rollout_ref": {"ajet_trees": True}}})


def test_on_a_cpu_sequences_are_split_with_trees_alone():
    machine = {"trainer_common.device": "cpu", "trainer_common.n_gpus_per_node": 2}
    split = {**machine, "trainer_common.ulysses_sequence_parallel_size": 2}
    error = refusal(split)
    assert "flash attention" in error.what and "ajet_trees: true" in str(error)
    passes(split, **{"verl": {"actor_rollout_ref": {"ajet_trees": True}}})
    summed = {"ajet_trees": True, "actor": {"calculate_sum_pi_squared": True}}
    error = refusal(split, **{"verl": {"actor_rollout_ref": summed}})
    assert "Sums of squared probabilities" in error.what and "calculate_sum_pi_squared: false" in error.expected
    passes({}, **{"verl": {"actor_rollout_ref": summed}})
    passes({"trainer_common.ulysses_sequence_parallel_size": 2})


def test_other_attention_than_flash_does_not_split_sequences():
    split = {"trainer_common.ulysses_sequence_parallel_size": 2}
    fused = {"model": {"override_config": {"attn_implementation": "sdpa"}}}
    assert "1 with attn_implementation sdpa" in refusal(split, verl={"actor_rollout_ref": fused}).expected
    passes({}, verl={"actor_rollout_ref": fused})
    passes(split, verl={"actor_rollout_ref": {"ajet_trees": True, **fused}})


def test_all_problems_are_reported_together():
    error = refusal({"rollout.temperature": 0, "rollout.max_model_len": 40000, "rollout.max_num_seqs": 9000})
    assert error.what.startswith("3 settings") and error.what.count("experiment.yaml:") == 3


def test_micro_batches_by_rows_need_their_sizes():
    rows = {
        "actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2},
        "rollout": {"log_prob_micro_batch_size_per_gpu": 2},
        "ref": {"log_prob_micro_batch_size_per_gpu": 2},
    }
    passes(actor_rollout_ref=rows)
    both = {**rows, "rollout": {**rows["rollout"], "log_prob_micro_batch_size": 4}}
    assert "and not actor_rollout_ref.rollout.log_prob_micro_batch_size too" in refusal(actor_rollout_ref=both).what
    del rows["ref"]
    assert "ref.log_prob_micro_batch_size_per_gpu" in refusal(actor_rollout_ref=rows).what
    passes({"trainer_common.use_kl_loss": False}, actor_rollout_ref=rows)


def test_unknown_roots_and_contradictions_below_verl_are_refused():
    error = refusal(verl={"trainers": {"nnodes": 2}})
    assert "no section 'trainers'" in error.what and error.do == "did you mean verl.trainer?"
    assert "no section 'ajet'" in refusal(verl={"ajet": {"seed": 1}}).what
    error = refusal(verl=nested("trainer.nnodes", 2), trainer={"nnodes": 4})
    assert (
        "trainer.nnodes is 4 and verl.trainer.nnodes is 2" in error.what and error.where.count("experiment.yaml:") == 2
    )
    assert "`trainer` is 5" in refusal(trainer=5).what
    passes(verl=nested("trainer.nnodes", 2), trainer={"nnodes": 2})


@pytest.mark.parametrize(
    ("ajet", "enough"),
    [
        ({}, False),  # 14 GiB of weights and 2.4 GiB for 18,000 tokens, in half of 24 GiB
        ({"rollout.gpu_memory_utilization": 0.7}, True),
        ({"rollout.gpu_memory_utilization": 0.6}, False),
        ({"rollout.gpu_memory_utilization": 0.6, "rollout.max_model_len": 2000, "data.max_prompt_length": 500}, True),
        ({"rollout.tensor_model_parallel_size": 2}, True),
        ({"model.dtype": "float32", "rollout.gpu_memory_utilization": 0.9}, False),
    ],
)
def test_the_engine_needs_memory_for_weights_and_one_sequence(ajet, enough):
    model = ModelLimits(parameters=7 * 2**30, cached_numbers=2 * 36 * 8 * 128)
    with pytest.raises(MissingExtraError if enough else ConfigError) as caught:
        compose_verl_config(experiment(ajet), model=model, gpu_bytes=24 * 2**30)
    assert enough or "the engine needs" in str(caught.value)


def test_what_a_model_needs_is_read_from_its_files(tmp_path):
    config = {"dtype": "bfloat16", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert read_limits(tmp_path) == ModelLimits(heads=4, parameters=500, cached_numbers=2 * 3 * 4 * 16)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 2, "head_dim": 32}))
    assert read_limits(tmp_path).cached_numbers == 2 * 3 * 2 * 32
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": 128}))
    assert read_limits(tmp_path).cached_numbers is None


def test_what_the_config_file_of_a_model_says(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 9, "num_experts": 4}}))
    assert read_limits(tmp_path) == ModelLimits(positions=9, experts=4)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="a JSON object"):
        read_limits(tmp_path)


@pytest.mark.parametrize(
    ("config", "border"),
    [
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 2048}}, 2048),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}, "max_position_embeddings": 512}, 512),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 4096}}, None),
        ({"rope_scaling": None}, None),
    ],
)
def test_where_rotary_frequencies_follow_the_length_a_border_is_known(tmp_path, config, border):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_limits(tmp_path).rotary_border == border


def test_sequences_beyond_the_border_of_rotary_frequencies_are_refused():
    long = ModelLimits(positions=131072, heads=16, kv_heads=8, rotary_border=4096)
    found = refusal({"rollout.max_model_len": 8192}, model=long)
    assert "by each batch's longest" in str(found) and "at most 4096" in str(found)
    passes(
        {"rollout.max_model_len": 4096, "data.max_prompt_length": 2048, "data.max_response_length": 2048}, model=long
    )


def test_the_resolvers_are_plain_functions():
    assert (div(8, 2), mul(2, 0.5), as_list("a"), as_list(("a", "b"))) == (4, 1.0, ["a"], ["a", "b"])
    with pytest.raises(ValueError, match="7 is not divisible by 2"):
        div(7, 2)
    assert pick(None, {None: 1}) == 1 and pick("x", {None: 1}) == "x" and pick("x", {None: 1}, "else") == "else"
    assert pick([1], {None: 1}) == [1]
    assert (versions(3), versions(0), versions(None)) == (4, 1, None)
    assert (room(4096, 18000, 1), room(4096, 18000, 8), room(4096, 9, 2)) == (18000, 4096, 4096)


@pytest.mark.parametrize(
    ("verl", "said"),
    [
        (
            nested(f"{ACTOR}.optim.lr_scheduler_type", "linear"),
            "the learning-rate schedule linear.*lr_schedule also linear",
        ),
        (
            nested("algorithm.adv_estimator", "gae"),
            "adv_estimator is gae.*grpo, rloo, maxrl, gigpo, reinforce_plus_plus",
        ),
        (nested("critic.enable", True), "critic.enable is true.*false"),
        (nested(f"{ACTOR}.policy_loss.loss_mode", "gspo"), "loss_mode is gspo.*vanilla"),
        (nested(f"{ACTOR}.loss_agg_mode", "seq-mean-token-sum"), "seq-mean-token-sum, .*seq-mean-token-sum-norm"),
        (nested("algorithm.rollout_correction.rollout_rs", "token_k1"), "rollout_rs is token_k1.*null"),
        (nested("algorithm.rollout_correction.rollout_is", "sequence"), "rollout_is is sequence.*token"),
        (
            {"algorithm": {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_2"}}},
            "rollout_is_threshold is 0.5_2.*a number",
        ),
        (nested(f"{ACTOR}.checkpoint.async_save", True), "async_save .*false"),
        (nested("trainer.checkpoint_callback_class", "my.Callback"), "my.Callback .*SavedCallback"),
        (nested("trainer.v1.trainer_mode", "sync"), "verl's trainer sync does not use ajet's advantages and loss"),
    ],
)
def test_what_our_trainers_do_not_have_is_refused_with_the_place(verl, said):
    error = refusal(verl=verl)
    assert re.search(said, f"{error.what} {error.expected}"), error
    assert "experiment.yaml:" in error.where


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.use_pf_ppo", True),
        ("algorithm.gdpo_reward_keys", ["a", "b"]),
        ("algorithm.gdpo_reward_weights", [1.0, 2.0]),
        ("reward.reward_manager.name", "dapo"),
        ("reward.custom_reward_function.path", "mine.py"),
        ("reward.reward_model.enable", True),
    ],
)
def test_what_bears_on_credit_and_is_not_ours_is_never_passed_over(key, value):
    assert key in str(refusal(verl=nested(key, value)))


def test_a_reward_function_says_where_it_goes():
    assert "task_judge.judge_protocol" in refusal(verl=nested("custom_reward_function.path", "mine.py")).do


def test_groups_are_filtered_by_the_reward_alone():
    filters = {"enable": True, "metric": "acc", "max_num_gen_batches": 3}
    assert "filter_groups.metric" in str(refusal(verl={"algorithm": {"filter_groups": filters}}))
    assert "max_num_gen_batches" in str(refusal(verl={"algorithm": {"filter_groups": {**filters, "metric": "reward"}}}))
    passes(verl={"algorithm": {"filter_groups": {**filters, "enable": False}}})
    passes(verl={"algorithm": {"filter_groups": {"enable": True, "metric": "seq_reward"}}})


def test_a_default_is_refused_by_the_users_file():
    with pytest.raises(ConfigError) as caught:
        compose_verl_config(experiment(), model=ModelLimits(positions=1024))
    assert "experiment.yaml" in caught.value.where and "default_config" not in caught.value.where
    assert "ajet.rollout.max_model_len: 1024" in caught.value.do
