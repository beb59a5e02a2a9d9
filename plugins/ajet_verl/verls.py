"""Maps verl's setting names to the keys below `ajet`, for advice to users who write verl's names.

It lists the settings in AWorld's `run.sh` whose equivalent no YAML layer shows. Invariants: a key named here as the
equivalent is a key of ajet, with a row in docs/reference/verl_keys.md. ajet reads no setting by verl's name. A user who
sets one gets advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.config.backbones import KeyAdvice

_FILES = (
    "task_reader.type: huggingface_dat_repo with task_reader.huggingface_dat_repo.dataset_path, a Parquet file or a "
    "folder of them"
)
_REWARD = "task_judge.judge_protocol: reward.py->reward, or task_judge.scorer"

HERE: dict[str, str] = {
    "data.train_files": _FILES,
    "data.val_files": _FILES,
    "data.return_raw_chat": "not needed: ajet always behaves so",
    "data.filter_overlong_prompts": "data.on_overlong: filter",
    "data.truncation": "data.on_overlong; ajet never cuts a text",
    "custom_reward_function.path": _REWARD,
    "custom_reward_function.name": _REWARD,
    "reward.custom_reward_function.path": _REWARD,
    "reward.custom_reward_function.name": _REWARD,
}
"""verl's keys in sections that belong to ajet or that verl does not read, with the key to write instead."""

LIKE: dict[str, str] = {
    "actor_rollout_ref.actor.ppo_mini_batch_size": "trainer_common.mini_batch_num",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "trainer_common.micro_batch_tokens",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "trainer_common.micro_batch_tokens",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": "rollout.user_workflow",
    "actor_rollout_ref.rollout.val_kwargs.n": "rollout.val_kwargs.num_repeat",
    "data.shuffle": "data.shuffle",
    "trainer.logger": "trainer_common.logger",
}
"""verl's keys that a key below `ajet` determines without a direct mapping, which `find_counterpart` cannot see."""

_ROLLOUT, _ACTOR, _REF = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.ref"
_TURNS = "rollout.multi_turn.max_steps, for `mcp_agent` rollout.mcp_agent.max_steps"
_TOOLS = "environment.use, with rollout.user_workflow: mcp_agent (docs/mcp.md), or your workflow's own tools"
_AS_SAMPLED = "not needed: ajet trains on the tokens exactly as sampled"
_BY_TOKENS = "trainer_common.micro_batch_tokens: passes count tokens while use_dynamic_bsz is true"

UNREAD: dict[str, str] = {
    f"{_ROLLOUT}.multi_turn.enable": "not needed: the workflow decides the number of turns",
    f"{_ROLLOUT}.multi_turn.tool_config_path": _TOOLS,
    f"{_ROLLOUT}.multi_turn.function_tool_path": _TOOLS,
    f"{_ROLLOUT}.multi_turn.max_assistant_turns": _TURNS,
    f"{_ROLLOUT}.multi_turn.max_user_turns": _TURNS,
    f"{_ROLLOUT}.multi_turn.max_parallel_calls": "rollout.mcp_agent.parallel",
    f"{_ROLLOUT}.multi_turn.max_tool_response_length": "rollout.mcp_agent.max_result_tokens, which counts tokens",
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": "rollout.mcp_agent.max_result_tokens; the end is cut",
    f"{_ROLLOUT}.multi_turn.use_inference_chat_template": _AS_SAMPLED,
    f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode": _AS_SAMPLED,
    f"{_ROLLOUT}.multi_turn.format": "not needed: ajet reads it from the model's chat template (`ajet doctor MODEL`)",
    f"{_ROLLOUT}.multi_turn.num_repeat_rollouts": "rollout.num_repeat",
    f"{_ACTOR}.clip_ratio": "clip_ratio_low and clip_ratio_high, or trainer_common.algorithm.clip_low and clip_high",
    "trainer.logger": "trainer_common.logger sets the trackers of the run; this key sets verl's only",
    "trainer.experiment_name": "experiment_name names the run folder; this key is verl's only",
}
"""Keys in sections read by verl without effect in a run of ajet, with the effective setting."""
ROWS: dict[str, str] = dict.fromkeys(
    (
        *(f"{_ACTOR}.ppo_micro_batch_size", f"{_ACTOR}.ppo_micro_batch_size_per_gpu"),
        *(f"{part}.log_prob_micro_batch_size{end}" for part in (_REF, _ROLLOUT) for end in ("", "_per_gpu")),
    ),
    _BY_TOKENS,
)
"""Further keys without effect while `use_dynamic_bsz` is true, its default here."""
DYNAMIC = f"{_ACTOR}.use_dynamic_bsz"

DEFAULTS: Mapping[str, Any] = {
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "algorithm.adv_estimator": "gae",
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
    "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
    "actor_rollout_ref.actor.fsdp_config.param_offload": False,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.max_model_len": None,
    "actor_rollout_ref.rollout.max_num_seqs": 256,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "trainer.total_epochs": 30,
    "trainer.val_before_train": True,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.v1.sampler.max_off_policy_threshold": 8,
    "trainer.v1.separate_async.parameter_sync_step": 4,
}
"""verl's own default of each key with another default in ajet.

Not listed: seeds, names, places, and settings of the reference model copied from the actor.
"""


SHORT: dict[str, str] = {
    "actor_rollout_ref.actor.clip_ratio": "trainer_common.algorithm.clip_low and clip_high",
    "rollout.n": "rollout.num_repeat",
    "rollout.val_kwargs.n": "rollout.val_kwargs.num_repeat",
}
"""verl names in sections of the same name here, and names of keys unused by verl itself."""

ADVICE = KeyAdvice(instead=HERE, like=LIKE, unread=UNREAD, switched={DYNAMIC: ROWS}, short=SHORT)
