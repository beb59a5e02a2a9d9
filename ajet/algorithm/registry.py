"""The algorithm of an experiment: one that comes with ajet, by name, or the user's own, by reference.

Invariant: both are found as a reference is, made with the settings alone and held to the contract here, before a step;
what is wrong is one UserError.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ajet.algorithm.contract import Algorithm, Need
from ajet.config.backbones import CAPABILITY_WORDS, find_backbone
from ajet.config.plugin import load_code, spell_reference
from ajet.config.plugins import find_part
from ajet.config.references import resolve_reference
from ajet.config.schema.trainer_common import STALE_CAP
from ajet.schema.errors import ConfigError, UserError

if TYPE_CHECKING:
    from ajet.algorithm.losses.contract import PolicyLoss
    from ajet.config import AjetConfig
    from ajet.config.schema.algorithm import AlgorithmConfig as Settings

SECTION = "ajet.trainer_common.algorithm"
KEY = f"{SECTION}.adv_estimator"
LOSS_KEY = f"{SECTION}.policy_loss"


def open_algorithm(config: AjetConfig, *, base: Path | None = None) -> Algorithm:
    """The algorithm that `config` names. `base`: the folder that a reference is relative to; None: `base_dir`, else the
    working directory. Raises UnresolvedReferenceError, ConfigError, or the UserError that a user's class raises."""
    settings = config.trainer_common.algorithm
    if config.sft.objective is None and "trains" in find_backbone(config.backbone).can:
        _require_trainable(config)
    if settings.old_policy == "behaviour" and config.rollout.truncates_sampling:
        raise ConfigError(
            "The ratio refers to the policy that sampled, and the rollout samples from a part of the distribution "
            "only (top_p, top_k): what was recorded is of that part, the update computes the whole, and the ratio of "
            "the two is below 1 by what was cut off, even with the same weights.",
            where=f"{SECTION}.old_policy",
            expected="rollout.top_p: 1.0 and rollout.top_k: -1, or old_policy: proximal",
        )
    algorithm = make_algorithm(settings.adv_estimator, str(base or config.base_dir or Path.cwd()), settings)
    if "teacher" in algorithm.needs:
        _require_teacher_support(algorithm, config)
    if "critic" in algorithm.needs and "values" not in find_backbone(config.backbone).can:
        raise ConfigError(
            f"{algorithm.name} needs a backbone that {CAPABILITY_WORDS['values']}, which {config.backbone} does not.",
            where=KEY,
            expected="--backbone local",
        )
    if "critic" in algorithm.needs and config.trainer_common.lora.adapters:
        raise ConfigError(
            f"{algorithm.name} has one value head, and several adapters change what it reads.",
            where=KEY,
            expected="one adapter for all agents (lora.rank), or an algorithm that compares attempts, such as grpo",
        )
    algorithm.require_fit(config)
    if settings.policy_loss is not None and find_part("loss", settings.policy_loss) is None:
        _require_loss_support(open_loss(algorithm), config)  # those by name say so in the schema
    return algorithm


def _require_trainable(config: AjetConfig) -> None:
    """Raises ConfigError for settings with which an update trains nothing of what was played."""
    settings = config.trainer_common.algorithm
    if config.rollout.temperature == 0:
        raise ConfigError(
            "Replies that are drawn at temperature 0 have no probabilities to train on: the update divides by it.",
            where="ajet.rollout.temperature",
            expected="above 0, such as 1.0 (validation has its own, ajet.rollout.val_kwargs.temperature)",
        )
    cap = STALE_CAP if settings.is_cap == "auto" else settings.is_cap
    if settings.is_mode.endswith("mask") and cap is not None and not settings.is_floor <= 1 <= cap:
        raise ConfigError(
            f"Tokens of importance weights from {settings.is_floor:g} to {cap:g} would be trained, and no others: not "
            "those on which engine and trainer agree, whose weight is 1.",
            where=f"{SECTION}.{'is_floor' if settings.is_floor > 1 else 'is_cap'}",
            expected="is_floor of 1 at most and is_cap of 1 at least, such as IcePop's 0.5 and 5",
        )
    covariance = settings.covariance
    if settings.policy_loss == "clip_cov" and covariance.low >= covariance.high:
        raise ConfigError(
            f"No covariance lies above {covariance.low:g} and below {covariance.high:g}: clip_cov would choose no "
            "token.",
            where=f"{SECTION}.covariance.low",
            expected="less than covariance.high, such as 1.0 and 5.0",
        )


def _require_loss_support(loss: PolicyLoss, config: AjetConfig) -> None:
    if loss.over_batch and "chooses" not in find_backbone(config.backbone).can:
        raise ConfigError(
            f"{loss.name} needs a backbone that {CAPABILITY_WORDS['chooses']}, which {config.backbone} does not.",
            where=LOSS_KEY,
            expected="--backbone local",
        )


def _require_teacher_support(algorithm: Algorithm, config: AjetConfig) -> None:
    rollout, teacher = config.rollout, algorithm.settings.teacher
    if "distils" not in find_backbone(config.backbone).can:
        raise ConfigError(
            f"{algorithm.name} needs a backbone that {CAPABILITY_WORDS['distils']}, which {config.backbone} does not.",
            where=KEY,
            expected="--backbone local",
        )
    if config.trainer_common.mode != "sync":
        raise ConfigError(
            "Samplers in processes of their own ask no teacher.", where="ajet.trainer_common.mode", expected="sync"
        )
    if (teacher.path is None) == (teacher.base_url is None) or (teacher.base_url and not teacher.model):
        raise ConfigError(
            f"{algorithm.name} learns from a teacher, and "
            + ("two are named." if teacher.path and teacher.base_url else "none is named in full."),
            where=f"{SECTION}.teacher",
            expected="path: a model that is loaded here, or base_url and model: one at a server with prompt_logprobs",
        )
    if rollout.truncates_sampling or rollout.temperature != 1:
        raise ConfigError(
            "A teacher is compared with the policy at temperature 1, and the rollout samples from something else.",
            where="ajet.rollout.temperature",
            expected="rollout.temperature: 1.0, top_p: 1.0 and top_k: -1",
        )


def make_algorithm(name: str, base: str, settings: Settings) -> Algorithm:
    """Make the algorithm `name` with these settings; `base`: the folder of a user's `file.py->Class`."""
    part = find_part("algorithm", name)
    kind: type[Algorithm] = load_code(part.code) if part is not None else _resolve_own_algorithm(name, Path(base))
    try:
        algorithm = kind(settings)
    except UserError:
        raise
    except Exception as problem:  # the user's code runs here, it may raise anything
        raise ConfigError(
            f"{name} could not be made: {type(problem).__name__}: {problem}",
            where=KEY,
            expected="a class that can be called with the settings of `trainer_common.algorithm` alone",
        ) from problem
    algorithm.name, algorithm.base, algorithm.made_by = name, base, make_algorithm
    if settings.policy_loss is not None and kind.policy_loss is not Algorithm.policy_loss:
        raise ConfigError(
            f"{name} has a policy_loss of its own, and {settings.policy_loss} is chosen, too.",
            where=LOSS_KEY,
            expected="one of the two: null is the algorithm's own",
        )
    if settings.old_policy == "behaviour" and not isinstance(settings.is_cap, str | None):
        raise ConfigError(
            "The ratio refers to the policy that sampled, and importance weights against it are asked for, too: what "
            "lies between the two would count twice.",
            where=f"{SECTION}.is_cap",
            expected="old_policy: proximal with is_cap (decoupled), or old_policy: behaviour with is_cap: null",
        )
    if settings.importance_weight_cap_ratio is None and (settings.strict_in_bound or settings.out_of_date_decay):
        key = "strict_in_bound" if settings.strict_in_bound else "out_of_date_decay"
        raise ConfigError(
            f"{key} is set, and there are no bounds that it could bear on: every token would be trained.",
            where=f"{SECTION}.{key}",
            expected="importance_weight_cap_ratio: a number, such as AgentRL's 4.0; or neither",
        )
    overlong = settings.overlong
    if overlong.length is not None and overlong.buffer > overlong.length:
        raise ConfigError(
            f"The penalty on length grows over {overlong.buffer} tokens, which are more than the {overlong.length} "
            "that are allowed: an attempt of no token would lose something.",
            where=f"{SECTION}.overlong.buffer",
            expected="length at most: the last tokens before it",
        )
    if settings.policy_loss is not None and find_part("loss", settings.policy_loss) is None:
        open_loss(algorithm)  # a reference that leads nowhere is told before a step
    if "teacher" in kind.needs and settings.use_kl_in_reward:
        raise ConfigError(
            f"{name} is told by a teacher, and penalties against the reference model are asked for in the reward, too.",
            where=f"{SECTION}.use_kl_in_reward",
            expected="false; trainer_common.use_kl_loss adds a KL term to the loss",
        )
    if "reference" in kind.needs and not settings.use_kl_in_reward:
        raise ConfigError(
            f"{name} needs the reference model's logprobs, and nothing asks for them.",
            where=KEY,
            expected="KL penalties in the reward",
            do=f"set {SECTION}.use_kl_in_reward: true, and its coefficient",
        )
    return algorithm


def open_loss(algorithm: Algorithm) -> PolicyLoss:
    """The loss that its settings name, else its own. Raises UnresolvedReferenceError or ConfigError."""
    name = algorithm.settings.policy_loss
    if name is None:
        from ajet.algorithm.losses.own import OwnLoss

        return OwnLoss(algorithm)
    return make_loss(name, algorithm.base, algorithm.settings)


def make_loss(name: str, base: str, settings: Settings) -> PolicyLoss:
    """The loss of that name, or at that reference."""
    from ajet.algorithm.losses.contract import PolicyLoss

    part = find_part("loss", name)
    kind: type[PolicyLoss] = (
        load_code(part.code)
        if part is not None
        else resolve_reference(name, base=Path(base), expect=PolicyLoss, what=LOSS_KEY)
    )
    loss = kind(settings)
    loss.name, loss.base, loss.made_by = name, base, make_loss
    return loss


def _resolve_own_algorithm(reference: str, base: Path) -> type[Algorithm]:
    kind: type[Algorithm] = resolve_reference(reference, base=base, expect=Algorithm, what=KEY)
    needs_critic = "critic" in kind.needs
    if needs_critic and kind.of_values is Algorithm.of_values:
        raise ConfigError(
            f"{reference} has a critic say values, and does not say what an attempt's advantages are.",
            where=KEY,
            expected="of_values(self, rewards_E_T, values_E_T), which answers advantages and returns",
        )
    if not needs_critic and kind.of_group is Algorithm.of_group and kind.advantages is Algorithm.advantages:
        raise ConfigError(
            f"{reference} does not say what an attempt's advantage is.",
            where=KEY,
            expected=f"a class such as {spell_reference('algorithm')} with of_group(self, returns_G), or "
            "advantages(self, rewards_E, penalties_E_T, groups_E)",
        )
    unknown = sorted(set(kind.needs) - set(get_args(Need)))
    if unknown:
        raise ConfigError(
            f"{reference} needs {', '.join(map(str, unknown))}, which no algorithm is given.",
            where=KEY,
            expected=f"needs = frozenset() with some of {', '.join(get_args(Need))}",
        )
    return kind
