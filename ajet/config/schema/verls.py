"""Settings of verl's that AWorld's `run.sh` gives it, and what says the same here where no layer shows it.

Invariant: a key that stands here is a key of ours; docs/aworld.md has a row for each, with the same keys. Nothing is
read by these names: who gives one is told.
"""

from __future__ import annotations

from collections.abc import Mapping

_FILES = (
    "task_reader.type: huggingface_dat_repo with task_reader.huggingface_dat_repo.dataset_path, a folder of Parquet"
)
_REWARD = "task_judge.judge_protocol: reward.py->reward, or task_judge.scorer"

HERE: Mapping[str, str] = {
    "data.train_files": _FILES,
    "data.val_files": _FILES,
    "data.return_raw_chat": "needless: it is so in any case",
    "data.filter_overlong_prompts": "data.on_overlong: filter",
    "data.truncation": "data.on_overlong; nothing is ever cut",
    "custom_reward_function.path": _REWARD,
    "custom_reward_function.name": _REWARD,
    "reward.custom_reward_function.path": _REWARD,
    "reward.custom_reward_function.name": _REWARD,
}
"""Below roots that are ours, or nobody's: what to write in its place."""

LIKE: Mapping[str, str] = {
    "actor_rollout_ref.actor.ppo_mini_batch_size": "trainer_common.mini_batch_num",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "trainer_common.micro_batch_tokens",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "trainer_common.micro_batch_tokens",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": "rollout.user_workflow",
    "actor_rollout_ref.rollout.val_kwargs.n": "rollout.val_kwargs.num_repeat",
    "data.shuffle": "data.shuffle",
    "trainer.logger": "trainer_common.logger",
}
"""Keys in sections of verl's own that ours decide and do not fill as they are: `nearest_key` cannot see them."""


SHORT: Mapping[str, str] = {
    "rollout.n": "rollout.num_repeat",
    "rollout.val_kwargs.n": "rollout.val_kwargs.num_repeat",
}
"""Names of verl's in sections that have the same name here."""


def advice(dotted: str) -> str:
    """What to do with a setting of verl's by that name; "" for one that is not among these."""
    if dotted in SHORT:
        return f"verl's {dotted} is here {SHORT[dotted]}"
    return f"verl's {dotted} is here {HERE[dotted]} (docs/aworld.md)" if dotted in HERE else ""
