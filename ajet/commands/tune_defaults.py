"""Defaults of `ajet.tune` that fit the model and the machine. Settings of the caller have priority.

The defaults of the YAML are for a GPU: 32 tasks, 4 attempts each, replies of 4,096 tokens. On a CPU such a step takes
hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.engine.dimensions import ModelSize

VALIDATIONS = 5
"""Validations in a run of known length, not counting the validation before the first step."""
ON_CPU: Mapping[str, Any] = {
    "data.train_batch_size": 8,
    "rollout.num_repeat": 4,
    "rollout.max_response_length_in_one_turn": 256,
    "rollout.max_model_len": 2048,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 1024,
    "trainer_common.use_kl_loss": False,
}
"""A step of a 135M model takes about a minute on two cores. The KL term would need a second copy of the model."""
RATES = ((200e6, 4e-5), (2e9, 1e-5))
"""(maximum parameters, learning rate). Larger models keep the default. Source: docs/first_settings.md, row 4."""


def choose_defaults(
    caller_settings: Mapping[str, Any],
    *,
    size: ModelSize | None,
    context: int | None,
    is_cpu: bool,
    tasks: int | None,
    steps: int | None,
    has_validation: bool,
) -> dict[str, Any]:
    """Return the keys below `ajet` to set, without keys in `caller_settings`.

    Args:
        caller_settings: Settings of the caller, by dotted key.
        size: The model's size. None if the files are not on this machine.
        context: Maximum context of the model in tokens. None if unknown.
        is_cpu: True if the model is trained on a CPU.
        tasks: Number of training tasks. None if unknown.
        steps: Training steps. None for a number of epochs.
        has_validation: True if there are held-out tasks.
    """
    defaults: dict[str, Any] = dict(ON_CPU) if is_cpu else {}
    if tasks is not None:
        defaults["data.train_batch_size"] = min(tasks, defaults.get("data.train_batch_size", 32))
    if is_cpu:
        max_length = int(
            caller_settings.get("rollout.max_model_len", min(context or 2048, defaults["rollout.max_model_len"]))
        )
        lengths = {"data.max_prompt_length": max_length // 2, "data.max_response_length": max_length // 2}
        defaults |= {"rollout.max_model_len": max_length, **lengths}
    learning_rate = next(
        (learning_rate for size_limit, learning_rate in RATES if size is not None and size.parameters <= size_limit),
        None,
    )
    if learning_rate is not None and "trainer_common.lora.rank" not in caller_settings:
        defaults["trainer_common.optim.lr"] = learning_rate
    if has_validation:
        defaults["trainer_common.val_before_train"] = True
        if steps is not None:
            defaults["trainer_common.test_freq"] = max(1, steps // VALIDATIONS)
    return {key: value for key, value in defaults.items() if key not in caller_settings}
