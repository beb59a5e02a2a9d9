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
    """Return the arguments of TRL's GRPOConfig, without folders, number of steps and device.

    Args:
        given: the section `trainer_common` as the user configured it, to refuse keys without an equivalent in TRL.

    Raises:
        ValueError: TRL does not support a setting, or the section `trl` sets a key that ajet owns.
    """
    unread = sorted(set(_list_paths(given)) - READ)
    if unread:
        raise ValueError(
            f"TRL does not support trainer_common.{unread[0]}; supported are {', '.join(sorted(READ))}, and further "
            f"settings of GRPOConfig in the section {SECTION}"
        )
    config = experiment.ajet
    services = ServiceKeys.of(config).services.values()
    trainer, algorithm, optim = config.trainer_common, config.trainer_common.algorithm, config.trainer_common.optim
    if algorithm.adv_estimator != "grpo":
        raise ValueError(f"TRL's GRPOTrainer supports the adv_estimator grpo, not {algorithm.adv_estimator}")
    if config.data.curriculum.prefer is not None:
        raise ValueError("TRL's GRPOTrainer does not support data.curriculum")
    unsupported_settings = [
        (config.rollout.engine not in ("auto", "transformers"), f"rollout.engine: {config.rollout.engine}"),
        (config.model.dtype not in ("auto", "float32"), f"model.dtype: {config.model.dtype}"),
        (any(not service.only_with_flag for service in services), "services; start them before it"),
    ]
    if unsupported := [name for is_unmet, name in unsupported_settings if is_unmet]:
        raise ValueError(f"the train engine trl does not support {unsupported[0]}")
    warmup_steps = max(optim.lr_warmup_steps, 0)
    ajet_values = {
        "num_generations": config.rollout.num_repeat,
        "temperature": config.rollout.temperature,
        "seed": config.seed,
        "shuffle_dataset": False,  # the order is ajet's
        "learning_rate": optim.lr,
        "lr_scheduler_type": "constant_with_warmup"
        if warmup_steps and optim.lr_schedule == "constant"
        else optim.lr_schedule,
        "warmup_steps": warmup_steps,
        "weight_decay": optim.weight_decay,
        "adam_beta1": optim.betas[0],
        "adam_beta2": optim.betas[1],
        "adam_epsilon": optim.eps,
        "max_grad_norm": optim.grad_clip or 0.0,  # 0 makes transformers skip clipping
        "beta": trainer.kl_loss_coef if trainer.use_kl_loss else 0.0,
        "epsilon": algorithm.clip_low,
        "epsilon_high": algorithm.clip_high,
        "scale_rewards": "group" if algorithm.norm_adv_by_std else "none",
        "loss_type": _LOSSES[algorithm.loss_aggregation],
        "max_completion_length": config.data.max_response_length,  # dr_grpo divides by it; nothing is cut to it
        "gradient_checkpointing": trainer.gradient_checkpointing,
        "num_iterations": 1,
        "use_vllm": False,
    }
    user_section = dict(experiment.sections.get(SECTION) or {})
    ajet_owned = {*ajet_values, "max_steps", "num_train_epochs", "gradient_accumulation_steps", "steps_per_generation",
             "generation_batch_size", "output_dir", "use_cpu", "mask_truncated_completions"}  # fmt: skip
    if owned_keys := sorted(ajet_owned & set(user_section)):
        raise ValueError(f"{SECTION}.{owned_keys[0]} is set by ajet from data, rollout and trainer_common")
    episodes_per_step = config.data.train_batch_size * config.rollout.num_repeat
    batch_size = int(user_section.get("per_device_train_batch_size", episodes_per_step))
    if batch_size < 1 or episodes_per_step % batch_size:
        raise ValueError(
            f"{SECTION}.per_device_train_batch_size is {batch_size}; expected a divisor of "
            f"{episodes_per_step}, a step's episodes"
        )
    ajet_values |= {
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": episodes_per_step // batch_size,
    }
    return {
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        **ajet_values,
        **user_section,
    }


def _list_paths(given: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of each value in nested mappings. `prefix` comes before each path, with its final dot."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _list_paths(value, f"{prefix}{key}.")
        else:
            yield prefix + key
