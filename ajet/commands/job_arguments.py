"""What AgentJetJob takes by name, and the key below `ajet` that each name stands for.

Invariant: the names are those of AgentJet's job, of 2026-01 and of the newest, and each is one key of a YAML, so that
whatever becomes of the key there (a value, a place in an error, a sentence that it has no effect) becomes of the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.schema.errors import UserError

KEYS: Mapping[str, str] = {
    "backbone": "backbone",
    "model": "model.path",
    "n_gpu": "trainer_common.n_gpus_per_node",
    "algorithm": "trainer_common.algorithm.adv_estimator",
    "n_gpu_for_infer": "rollout.n_vllm_engine",
    "name": "experiment_name",
    "experiment_name": "experiment_name",
    "experiment_dir": "experiment_dir",
    "project_name": "project_name",
    "logging": "trainer_common.logger",
    "num_repeat": "rollout.num_repeat",
    "batch_size": "data.train_batch_size",
    "max_env_worker": "rollout.max_env_worker",
    "max_prompt_length": "data.max_prompt_length",
    "max_response_length": "data.max_response_length",
    "max_response_length_in_one_turn": "rollout.max_response_length_in_one_turn",
    "max_model_len": "rollout.max_model_len",
    "mini_batch_num": "trainer_common.mini_batch_num",
    "lora_rank": "trainer_common.lora.rank",
    "lora_alpha": "trainer_common.lora.alpha",
    "lora_target_modules": "trainer_common.lora.target_modules",
    "lora_load_format": "lora.load_format",
    "layered_summon": "lora.layered_summon",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "lr": "trainer_common.optim.lr",
    "ppo_epochs": "trainer_common.ppo_epochs",
    "compute_madness_checklist": "rollout.compute_madness_checklist",
    "swarm_mode": "enable_swarm_mode",
    "swarm_mode_sample_collection_method": "swarm_mode_sample_collection_method",
}
"""`lora.load_format`, `lora.layered_summon` and those of swarm mode are keys that are accepted, and said to have no
effect; `ppo_epochs` is one that is understood at 1."""


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values of what was given; None is nothing. Raises UserError for two names of a key that differ."""
    told: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        if name not in KEYS or value is None:
            continue
        other, before = told.setdefault(KEYS[name], (name, value))
        if before != value:
            raise UserError(
                f"{other}={before!r} and {name}={value!r} are the same setting.",
                where=f"ajet.{KEYS[name]}, as given in Python",
                do="give one of them",
            )
    return {key: value for key, (_, value) in told.items()}
