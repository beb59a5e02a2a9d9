"""Reads the settings of credit assignment (advantages) and loss from verl's composed config.

Invariants: verl's keys are the only source, so the user's `verl:` section takes precedence here too. ajet's trainers
assign credit and compute the loss themselves, equally on every backbone. A verl setting without an equivalent is
refused (`find_unsupported`), never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ajet.config.plugin import load_code, spell_reference
from ajet.config.plugins import find_parts
from ajet.config.schema import AjetConfig
from ajet.config.schema.choices import is_reference
from ajet.config.schema.extended import config_model
from ajet_ray.modes import DECOUPLED

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm

AGGREGATIONS = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum-norm": "sequence-sum",
}
"""Maps verl's loss aggregations to ajet's."""
ESTIMATOR = "algorithm.adv_estimator"
"""verl's key for the estimator: a name shared with ajet, or a reference to custom code.

verl reads the key only in code replaced by ajet.
"""
KL_TYPES = ("low_var_kl", "k1", "k2", "k3", "kl", "abs", "mse")
_ACTOR, _CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
_TAKEN: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("algorithm.gamma", (1, None)),
    ("algorithm.kl_penalty", ("kl", "k1", None)),
    ("algorithm.kl_ctrl.type", ("fixed", None)),
    ("algorithm.use_pf_ppo", (False, None)),
    ("algorithm.gdpo_reward_keys", (None,)),
    ("algorithm.gdpo_reward_weights", (None,)),
    (f"{_CORRECTION}.rollout_is", ("token", None)),
    (f"{_CORRECTION}.rollout_rs", (None,)),
    (f"{_CORRECTION}.rollout_is_batch_normalize", (False, None)),
    ("critic.enable", (False,)),
    ("distillation.enabled", (False, None)),
    (f"{_ACTOR}.loss_agg_mode", tuple(AGGREGATIONS)),
    (f"{_ACTOR}.kl_loss_type", KL_TYPES),
    (f"{_ACTOR}.policy_loss.loss_mode", ("vanilla", None)),
    (f"{_ACTOR}.shuffle", (False, None)),
    ("reward.reward_manager.name", ("naive", None)),
    ("reward.reward_manager.source", ("register", None)),
    ("reward.custom_reward_function.path", (None,)),
    ("reward.reward_model.enable", (False, None)),
    ("reward.sandbox_fusion.url", (None,)),
    ("reward_manager.name", ("naive", None)),
    ("custom_reward_function.path", (None,)),
    ("reward_model.enable", (False, None)),
    ("reward_model.reward_manager", ("naive", None)),
)
"""verl's keys with the values that ajet's advantages and loss support; None stands for an unset key."""
_FILTERED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("algorithm.filter_groups.metric", ("reward", "score", "seq_reward", "seq_final_reward", None)),
    ("algorithm.filter_groups.max_num_gen_batches", (0, None)),
)
"""Further keys, checked only if verl filters groups: ajet filters groups by reward only."""


def _load_algorithms() -> dict[str, type[Algorithm]]:
    """Load the classes of all advantage algorithms, by the name of the algorithm."""
    return {name: load_code(part.code) for name, part in find_parts("algorithm").items()}


def find_unsupported(value: Callable[[str], Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield (verl key, its value, expected values as text) for each setting that ajet's credit and loss lack.

    Args:
        value: returns the effective value of a verl key, or None if it is unset.
    """
    filters_groups = value("algorithm.filter_groups.enable")
    # verl's trainer provides groups and a reference model only; algorithms that need more do not work in it.
    algorithms = tuple(
        name for name, algorithm in _load_algorithms().items() if algorithm.needs <= {"group", "reference"}
    )
    for key, supported in ((ESTIMATOR, algorithms), *_TAKEN, *(_FILTERED if filters_groups else ())):
        current = value(key)
        is_custom = key == ESTIMATOR and isinstance(current, str) and is_reference(current)
        if current not in supported and not is_custom:
            option_names = [
                str(option).lower() if isinstance(option, bool) else str(option)
                for option in supported
                if option is not None
            ]
            option_list = (
                " or ".join([", ".join(option_names[:-1]), option_names[-1]])
                if len(option_names) > 1
                else "".join(option_names or ["null"])
            )
            reference_hint = f", or a reference such as {spell_reference('algorithm')}" if key == ESTIMATOR else ""
            yield key, current, f"{option_list}{reference_hint}"
    weight_cap = value(f"{_CORRECTION}.rollout_is_threshold")
    if value(f"{_CORRECTION}.rollout_is") is not None and (
        isinstance(weight_cap, bool) or not isinstance(weight_cap, int | float)
    ):
        yield f"{_CORRECTION}.rollout_is_threshold", weight_cap, "a number"


def read_credit_settings(verl: Mapping[str, Any]) -> AjetConfig:
    """Read the credit and loss settings from verl's complete config. Unrelated settings keep their defaults.

    Raises:
        ValueError: `find_unsupported` yields a key.
    """
    for key, current, expected in find_unsupported(lambda key: _find_value(verl, key)):
        raise ValueError(f"{key} is {current!r}, expected {expected}")
    algorithm, correction = verl["algorithm"], verl["algorithm"]["rollout_correction"]
    actor, rollout = verl["actor_rollout_ref"]["actor"], verl["actor_rollout_ref"]["rollout"]
    batch_tasks, mini_batch_tasks = verl["data"]["train_batch_size"], actor["ppo_mini_batch_size"]
    return config_model().model_validate(
        {
            "base_dir": verl["trainer"]["ajet_base"],
            "data": {"max_response_length": actor["loss_scale_factor"], "train_batch_size": batch_tasks},
            "rollout": {
                "temperature": rollout["temperature"],
                "top_p": rollout["top_p"],
                "top_k": rollout["top_k"],
                "num_repeat": rollout["n"],
            },
            "trainer_common": {
                "mini_batch_num": batch_tasks // mini_batch_tasks,
                "use_kl_loss": actor["use_kl_loss"],
                "kl_loss_coef": actor["kl_loss_coef"],
                "kl_loss_type": actor["kl_loss_type"],
                "algorithm": {
                    **verl["trainer"]["ajet_algorithm"],
                    "adv_estimator": algorithm["adv_estimator"],
                    "norm_adv_by_std": algorithm["norm_adv_by_std_in_grpo"],
                    "clip_low": actor["clip_ratio_low"],
                    "clip_high": actor["clip_ratio_high"],
                    "clip_dual": actor["clip_ratio_c"],
                    "loss_aggregation": AGGREGATIONS[actor["loss_agg_mode"]],
                    "is_cap": correction["rollout_is_threshold"] if correction["rollout_is"] else None,
                    "dynamic_sampling": algorithm["filter_groups"]["enable"] or _should_leave_out(verl),
                    "equal_rewards": verl["trainer"]["ajet_equal_rewards"],
                    "process_weight": verl["trainer"]["ajet_process_weight"],
                    "step_discount": verl["trainer"]["ajet_step_discount"],
                    "use_kl_in_reward": algorithm["use_kl_in_reward"],
                    "kl_in_reward_coef": algorithm["kl_ctrl"]["kl_coef"],
                },
            },
        }
    )


def _should_leave_out(verl: Mapping[str, Any]) -> bool:
    """Return True if groups with equal rewards shall be left out of a complete batch, without a replacement.

    This holds for runs with remote samplers: verl's own filter would wait for more groups than samplers may run ahead.
    """
    return bool(verl["trainer"]["v1"]["trainer_mode"] == DECOUPLED and verl["trainer"]["ajet_left_out"])


def _find_value(tree: Any, key: str) -> Any:
    """Return the value at a dotted key of a nested mapping, or None if a part of the key is missing."""
    for name in key.split("."):
        tree = tree.get(name) if tree is not None else None
    return tree
