"""Map the names of AgentRL's flags to the equivalents in ajet.

Invariant: each flag of AgentRL's `src/configs.py` and scripts is in exactly one of the two tables, and each named key
is a key of ajet. docs/agentrl.md has a row per flag with equal keys. No setting is read under an AgentRL name: users
get the advice instead.
"""

from __future__ import annotations

from collections.abc import Mapping

_SEVERAL = "set --backbone verl --with-ray-cluster, trainer_common.nnodes and trainer_common.n_gpus_per_node"
_CLUSTER = "--with-ray-cluster joins the Ray cluster at RAY_ADDRESS; `ajet cluster render` writes the job"
_STEPS = "trainer_common.total_training_steps"
_PACKED = "not needed: ajet packs samples up to trainer_common.micro_batch_tokens"
_BATCH = "data.train_batch_size, the number of tasks of a step"
_LOGITS = "not needed: ajet computes logits for trained positions only, in pieces"
_TOO_FAR = "rollout.mcp_agent.on_overflow"
_PARALLEL = "trainer_common.strategy: megatron, and trainer_common.megatron"

HERE: Mapping[str, str] = {
    "config_file": _SEVERAL,
    "num_processes": _SEVERAL,
    "num_machines": _SEVERAL,
    "machine_rank": _CLUSTER,
    "main_process_ip": _CLUSTER,
    "main_process_port": _CLUSTER,
    "run_name": "experiment_name",
    "output_dir": "--exp-dir, or trainer_common.checkpoint_base_dir for checkpoints only",
    "save_steps": "trainer_common.save_freq",
    "save_only_model": "`ajet export RUN`, which writes the weights only",
    "max_steps": _STEPS,
    "num_train_epochs": "trainer_common.total_epochs",
    "eval_strategy": "trainer_common.test_freq",
    "eval_steps": "trainer_common.test_freq",
    "report_to": "trainer_common.logger",
    "logging_steps": "trainer_common.log_freq",
    "db_connection_string": "store.type: mongodb with store.uri; with samplers `ajet train --from-store ADDRESS`",
    "model_name_or_path": "model.path",
    "torch_dtype": "model.dtype",
    "bf16": "model.dtype: bfloat16",
    "trust_remote_code": "model.trust_remote_code",
    "tp_size": f"{_PARALLEL}.tensor_model_parallel_size",
    "pp_size": f"{_PARALLEL}.pipeline_model_parallel_size",
    "ep_size": f"{_PARALLEL}.expert_model_parallel_size",
    "cp_size": "trainer_common.ulysses_sequence_parallel_size",
    "activation_offloading": "trainer_common.gradient_checkpointing",
    "enable_loss_parallel": _LOGITS,
    "loss_seq_chunk_size": _LOGITS,
    "pad_to_multiple_of": _PACKED,
    "pad_to_maximum": _PACKED,
    "dynamic_batching": _PACKED,
    "shift_labels": _PACKED,
    "per_device_train_batch_size": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "max_tokens": "rollout.max_model_len; data.on_overlong sets what happens to longer prompts",
    "learning_rate": "trainer_common.optim.lr",
    "weight_decay": "trainer_common.optim.weight_decay",
    "optim_args": "trainer_common.optim.betas",
    "max_grad_norm": "trainer_common.optim.grad_clip",
    "lr_scheduler_type": "trainer_common.optim.lr_schedule",
    "warmup_steps": "trainer_common.optim.lr_warmup_steps",
    "loss_calculater": "trainer_common.algorithm.preset: minirl or grpo, trainer_common.algorithm.policy_loss: gspo, "
    "or `ajet sft`",
    "token_level_loss": "trainer_common.algorithm.loss_aggregation: token (true) or sequence (false)",
    "skip_length_normalization": "trainer_common.algorithm.loss_aggregation: sequence-sum",
    "epsilon": "trainer_common.algorithm.clip_low",
    "epsilon_higher": "trainer_common.algorithm.clip_high, the sum of epsilon and epsilon_higher",
    "strict_in_bound": "trainer_common.algorithm.strict_in_bound",
    "importance_weight_cap_ratio": "trainer_common.algorithm.importance_weight_cap_ratio",
    "out_of_date_decay": "trainer_common.algorithm.out_of_date_decay",
    "adv_scaling": "trainer_common.algorithm.adv_scaling",
    "balance_sample": "trainer_common.algorithm.balance_sample",
    "drop_zero_advantage": "not needed: ajet does not train on groups of equal rewards",
    "max_trained_count": "trainer_common.algorithm.max_trained_count",
    "retrained_interval": "trainer_common.algorithm.retrained_interval",
    "log_entropy": "not needed: ajet always reports the metric `entropy`",
    "reserve_context_error_count": "rollout.policy_failure_reward",
    "train_file": "task_reader.type: agentrl with task_reader.agentrl.training.file_path",
    "enable_sampling": "`ajet train --from-store ADDRESS`, with `ajet sample` on other machines",
    "sync_sampling": "trainer_common.mode: sync or async",
    "num_generations": "rollout.num_repeat",
    "max_new_tokens": "rollout.max_response_length_in_one_turn",
    "max_prompt_tokens": "rollout.max_model_len",
    "max_turns": "rollout.multi_turn.max_steps, for `mcp_agent` also rollout.mcp_agent.max_steps",
    "preferred_sampling_params": "rollout.temperature, rollout.top_p and rollout.top_k",
    "tool_call_parser": "not needed: ajet reads it from the model's chat template (`ajet doctor MODEL`)",
    "inf_tp_size": "rollout.tensor_model_parallel_size",
    "inf_mem_ratio": "rollout.gpu_memory_utilization",
    "max_concurrent_samples_per_process": "rollout.max_env_worker",
    "target_concurrency": "rollout.max_num_seqs",
    "resample_error_records": "rollout.max_retries",
    "mcp_manager_url": "environment.use: http://HOST:PORT/mcpapi",
    "mcp_server_name": "environment.use",
    "mcp_auth_token": "the variable MCP_SERVER_TOKEN",
    "agent_config_path": "environment.agent_config",
    "new_context": _TOO_FAR,
    "compress_history": f"{_TOO_FAR}: summarize",
    "repetition_early_stop_times": "rollout.mcp_agent.on_repetition: end",
    "seed": "seed",
}
"""Replacement of each AgentRL flag in ajet."""

NOT_HERE = frozenset(
    [
        "trainer",
        "attention_implementation",
        "cpu_ram_efficient_loading",
        "bypass_causal_mask_check",
        "output_router_logits",
        "decoder_sparse_step",
        "max_pixels",
        "tune_vision",
        "oss_connection_string",
        "enable_oss",
        "dataloader_num_workers",
        "dataloader_prefetch_factor",
        "dataloader_drop_last",
        "remove_unused_columns",
        "accelerator_config",
        "beta1",
        "beta2",
        "minimal_advantage",
        "skip_non_positive_advantage",
        "min_turns",
        "remove_experience",
        "efficient_rewarding",
        "presence_penalty",
        "frequency_penalty",
        "top_k",
        "model_name",
        "inf_ep_size",
        "enable_repetition_compress",
    ]
)
"""AgentRL flags without a counterpart, explained in docs/agentrl.md."""


def advice(name: str) -> str:
    """Return what replaces a setting of AgentRL in ajet, or "" for a name that AgentRL does not have."""
    if name in HERE:
        return f"in ajet, AgentRL's {name} is {HERE[name]} (docs/agentrl.md)"
    return (
        f"ajet has no key for AgentRL's {name}: delete it (docs/agentrl.md gives the reason)"
        if name in NOT_HERE
        else ""
    )
