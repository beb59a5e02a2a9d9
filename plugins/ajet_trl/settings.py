"""Convert ajet's settings to GRPOConfig.

Invariant: a key means the same as on every backbone, or is refused; no setting is ignored. Settings of TRL alone are in
the section `trl`, with TRL's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ajet_environments.config import ServiceKeys

if TYPE_CHECKING:
    from ajet.config import Experiment

SECTION = "trl"
READ = {
    "total_training_steps", "total_epochs", "use_kl_loss", "kl_loss_coef", "gradient_checkpointing", "threads",
    "device", "optim.lr", "optim.lr_schedule", "optim.lr_warmup_steps", "optim.weight_decay", "optim.betas",
    "optim.eps", "optim.grad_clip", "algorithm.adv_estimator", "algorithm.norm_adv_by_std", "algorithm.clip_low",
    "algorithm.clip_high", "algorithm.loss_aggregation",
}  # fmt: skip
"""Keys of `trainer_common` converted to GRPOConfig."""
_LOSSES = {"sequence": "grpo", "token": "dapo", "sequence-sum": "dr_grpo"}


def build_grpo_settings(experiment: Experiment, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of GRPOConfig without folders, steps and device. `given`: the configured `trainer_common`.
    Raises ValueError."""
    unread = sorted(set(_list_paths(given)) - READ)
    if unread:
        raise ValueError(
            f"TRL does not support trainer_common.{unread[0]}; supported are {', '.join(sorted(READ))}, and further "
            f"settings of GRPOConfig in the section {SECTION}"
        )
    config = experiment.ajet
    services = ServiceKeys.of(config).services.values()
    trainer, credit, optim = config.trainer_common, config.trainer_common.algorithm, config.trainer_common.optim
    if credit.adv_estimator != "grpo":
        raise ValueError(f"TRL's GRPOTrainer supports the adv_estimator grpo, not {credit.adv_estimator}")
    if config.data.curriculum.prefer is not None:
        raise ValueError("TRL's GRPOTrainer does not support data.curriculum")
    unmet = [
        (config.rollout.engine not in ("auto", "transformers"), f"rollout.engine: {config.rollout.engine}"),
        (config.model.dtype not in ("auto", "float32"), f"model.dtype: {config.model.dtype}"),
        (any(not service.only_with_flag for service in services), "services; start them before it"),
    ]
    if unsupported := [name for is_unmet, name in unmet if is_unmet]:
        raise ValueError(f"the train engine trl does not support {unsupported[0]}")
    warm = max(optim.lr_warmup_steps, 0)
    ajet_values = {
        "num_generations": config.rollout.num_repeat,
        "temperature": config.rollout.temperature,
        "seed": config.seed,
        "shuffle_dataset": False,  # the order is ajet's
        "learning_rate": optim.lr,
        "lr_scheduler_type": "constant_with_warmup" if warm and optim.lr_schedule == "constant" else optim.lr_schedule,
        "warmup_steps": warm,
        "weight_decay": optim.weight_decay,
        "adam_beta1": optim.betas[0],
        "adam_beta2": optim.betas[1],
        "adam_epsilon": optim.eps,
        "max_grad_norm": optim.grad_clip or 0.0,  # 0 makes transformers skip clipping
        "beta": trainer.kl_loss_coef if trainer.use_kl_loss else 0.0,
        "epsilon": credit.clip_low,
        "epsilon_high": credit.clip_high,
        "scale_rewards": "group" if credit.norm_adv_by_std else "none",
        "loss_type": _LOSSES[credit.loss_aggregation],
        "max_completion_length": config.data.max_response_length,  # dr_grpo divides by it; nothing is cut to it
        "gradient_checkpointing": trainer.gradient_checkpointing,
        "num_iterations": 1,
        "use_vllm": False,
    }
    users = dict(experiment.sections.get(SECTION) or {})
    owned = {*ajet_values, "max_steps", "num_train_epochs", "gradient_accumulation_steps", "steps_per_generation",
             "generation_batch_size", "output_dir", "use_cpu", "mask_truncated_completions"}  # fmt: skip
    if owned_keys := sorted(owned & set(users)):
        raise ValueError(f"{SECTION}.{owned_keys[0]} is set by ajet from data, rollout and trainer_common")
    rows = config.data.train_batch_size * config.rollout.num_repeat
    at_once = int(users.get("per_device_train_batch_size", rows))
    if at_once < 1 or rows % at_once:
        raise ValueError(
            f"{SECTION}.per_device_train_batch_size is {at_once}; expected a divisor of {rows}, a step's episodes"
        )
    ajet_values |= {"per_device_train_batch_size": at_once, "gradient_accumulation_steps": rows // at_once}
    return {"bf16": False, "save_strategy": "no", "report_to": "none", "logging_steps": 1, **ajet_values, **users}


def _list_paths(given: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _list_paths(value, f"{before}{key}.")
        else:
            yield before + key
