"""Open the algorithm and the loss of an experiment: built-in by name, or the user's own by reference.

Invariant: an algorithm is constructed from the settings alone and checked against the contract before the first step.
Every problem raises a single UserError.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from ajet.algorithm.contract import Algorithm, Need
from ajet.config.backbones import CAPABILITY_WORDS, Capability, find_backbone
from ajet.config.plugin import load_code, spell_reference
from ajet.config.plugins import find_part, list_packages
from ajet.config.references import resolve_reference
from ajet.config.schema.trainer_common import STALE_CAP
from ajet.schema.commands import format_command
from ajet.schema.errors import AjetError, ConfigError, UserError

if TYPE_CHECKING:
    from ajet.algorithm.contract import Row
    from ajet.algorithm.losses.contract import PolicyLoss
    from ajet.config import AjetConfig
    from ajet.config.schema.algorithm import AlgorithmConfig as Settings


SECTION = "ajet.trainer_common.algorithm"
KEY = f"{SECTION}.adv_estimator"
LOSS_KEY = f"{SECTION}.policy_loss"
CAPABILITIES: Mapping[Need, Capability] = {
    "teacher": "distils",
    "distribution": "distils",
    "privileged": "distils",
    "critic": "values",
    "observations": "observes",
}
"""The ability of a backbone that each need requires."""


def open_algorithm(config: AjetConfig, *, base: Path | None = None) -> Algorithm:
    """Open the algorithm named by `config` and check that the other settings fit.

    Args:
        base: The folder to resolve a reference against. None: `base_dir`, else the working directory.

    Raises:
        UnresolvedReferenceError: The reference matches no class.
        ConfigError: Settings conflict.
        UserError: The user's class raised an error.
    """
    settings = config.trainer_common.algorithm
    if config.sft.objective is None and "trains" in find_backbone(config.backbone).can:
        _require_trainable(config)
    if settings.old_policy == "behaviour" and config.rollout.truncates_sampling:
        raise ConfigError(
            "old_policy: behaviour compares with the sampling policy, but top_p or top_k truncate sampling. The "
            "recorded log-probabilities belong to the truncated distribution and the update computes the full "
            "one, so their ratio is below 1 even with equal weights.",
            where=f"{SECTION}.old_policy",
            expected="rollout.top_p: 1.0 and rollout.top_k: -1, or old_policy: proximal",
        )
    algorithm = make_algorithm(settings.adv_estimator, str(base or config.base_dir or Path.cwd()), settings)
    for need, capability in CAPABILITIES.items():
        if need in algorithm.needs and capability not in find_backbone(config.backbone).can:
            raise ConfigError(
                f"{algorithm.name} is not possible on the backbone {config.backbone}, which cannot "
                f"{CAPABILITY_WORDS[capability]}.",
                where=KEY,
                expected="--backbone local",
            )
    if algorithm.needs & {"teacher", "distribution"}:
        _require_teacher_settings(algorithm, config)
    if "privileged" in algorithm.needs and config.rollout.truncates_sampling:
        raise ConfigError(
            f"{algorithm.name} compares complete distributions, but top_p or top_k truncate sampling.",
            where=KEY,
            expected="rollout.top_p: 1.0 and rollout.top_k: -1",
        )
    if "critic" in algorithm.needs and config.trainer_common.lora.adapters:
        raise ConfigError(
            f"{algorithm.name} has one value head, which cannot be shared by several adapters.",
            where=KEY,
            expected="one adapter for all agents (lora.rank), or an algorithm that compares attempts, such as grpo",
        )
    algorithm.require_fit(config)
    if settings.policy_loss is not None and find_part("loss", settings.policy_loss) is None:
        _require_loss_support(open_loss(algorithm), config)  # the schema checks built-in losses
    return algorithm


def _require_trainable(config: AjetConfig) -> None:
    """Raise ConfigError for settings that leave an update without tokens to train."""
    settings = config.trainer_common.algorithm
    if config.rollout.temperature == 0:
        raise ConfigError(
            "Training needs a temperature above 0: the update divides logits by the temperature.",
            where="ajet.rollout.temperature",
            expected="above 0, such as 1.0 (validation uses ajet.rollout.val_kwargs.temperature)",
        )
    cap = STALE_CAP if settings.is_cap == "auto" else settings.is_cap
    if settings.is_mode.endswith("mask") and cap is not None and not settings.is_floor <= 1 <= cap:
        raise ConfigError(
            f"Only tokens with importance weights from {settings.is_floor:g} to {cap:g} would be trained. This "
            "excludes tokens whose log-probabilities are equal in engine and trainer (weight 1).",
            where=f"{SECTION}.{'is_floor' if settings.is_floor > 1 else 'is_cap'}",
            expected="is_floor of at most 1 and is_cap of at least 1, such as IcePop's 0.5 and 5",
        )
    covariance = settings.covariance
    if settings.policy_loss == "clip_cov" and covariance.low >= covariance.high:
        raise ConfigError(
            f"No covariance lies between {covariance.low:g} and {covariance.high:g}: clip_cov would choose no token.",
            where=f"{SECTION}.covariance.low",
            expected="less than covariance.high, such as 1.0 and 5.0",
        )


def _require_loss_support(loss: PolicyLoss, config: AjetConfig) -> None:
    """Raise ConfigError if the backbone cannot choose tokens of a batch and the loss needs this."""
    if loss.over_batch and "chooses" not in find_backbone(config.backbone).can:
        raise ConfigError(
            f"{loss.name} is not possible on the backbone {config.backbone}, which cannot "
            f"{CAPABILITY_WORDS['chooses']}.",
            where=LOSS_KEY,
            expected="--backbone local",
        )


def _require_teacher_settings(algorithm: Algorithm, config: AjetConfig) -> None:
    """Raise ConfigError if an algorithm cannot learn from the configured teacher model."""
    rollout, teacher = config.rollout, algorithm.settings.teacher
    if "distribution" in algorithm.needs and teacher.base_url is not None:
        raise ConfigError(
            f"{algorithm.name} compares complete distributions, which a server does not return.",
            where=f"{SECTION}.teacher.base_url",
            expected="teacher.path, or adv_estimator: distillation for a server",
        )
    if "teacher" in algorithm.needs and config.trainer_common.mode != "sync":
        raise ConfigError(
            "Samplers in separate processes do not ask a teacher model.",
            where="ajet.trainer_common.mode",
            expected="sync",
        )
    if (teacher.path is None) == (teacher.base_url is None) or (teacher.base_url and not teacher.model):
        raise ConfigError(
            f"{algorithm.name} learns from a teacher, and "
            + ("two teachers are set." if teacher.path and teacher.base_url else "no teacher is fully set."),
            where=f"{SECTION}.teacher",
            expected="path: a model loaded locally, or base_url and model: a server with prompt_logprobs",
        )
    if rollout.truncates_sampling or rollout.temperature != 1:
        raise ConfigError(
            "Distillation compares teacher and policy at temperature 1 without truncation, unlike this rollout.",
            where="ajet.rollout.temperature",
            expected="rollout.temperature: 1.0, top_p: 1.0 and top_k: -1",
        )


def make_algorithm(name: str, base: str, settings: Settings) -> Algorithm:
    """Make the algorithm of a built-in name or a user's reference. Raises ConfigError for settings that it cannot use.

    Args:
        base: The folder of a user's `file.py->Class`.
    """
    part = find_part("algorithm", name)
    kind: type[Algorithm] = load_code(part.code) if part is not None else _resolve_own_algorithm(name, Path(base))
    try:
        algorithm = kind(settings)
    except UserError:
        raise
    except Exception as problem:  # user code may raise anything
        raise ConfigError(
            f"{name} could not be created: {type(problem).__name__}: {problem}",
            where=KEY,
            expected="a class whose constructor takes the settings of `trainer_common.algorithm` alone",
        ) from problem
    algorithm.name = name
    algorithm.base = base
    algorithm.made_by = make_algorithm
    if settings.policy_loss is not None and kind.policy_loss is not Algorithm.policy_loss:
        raise ConfigError(
            f"{name} defines its own policy_loss, but the settings also set {settings.policy_loss}.",
            where=LOSS_KEY,
            expected="only one of the two; null selects the algorithm's own loss",
        )
    if settings.old_policy == "behaviour" and not isinstance(settings.is_cap, str | None):
        raise ConfigError(
            "old_policy: behaviour and is_cap both correct for the sampling policy: the correction would count twice.",
            where=f"{SECTION}.is_cap",
            expected="old_policy: proximal with is_cap (decoupled), or old_policy: behaviour with is_cap: null",
        )
    if settings.importance_weight_cap_ratio is None and (settings.strict_in_bound or settings.out_of_date_decay):
        key = "strict_in_bound" if settings.strict_in_bound else "out_of_date_decay"
        raise ConfigError(
            f"{key} has no effect without bounds: every token would be trained.",
            where=f"{SECTION}.{key}",
            expected="importance_weight_cap_ratio: a number, such as AgentRL's 4.0; or neither",
        )
    overlong = settings.overlong
    if overlong.length is not None and overlong.buffer > overlong.length:
        raise ConfigError(
            f"overlong.buffer ({overlong.buffer} tokens) exceeds overlong.length ({overlong.length} tokens): even an "
            "empty attempt would get a length penalty.",
            where=f"{SECTION}.overlong.buffer",
            expected="at most overlong.length, because the penalty grows over the last tokens before it",
        )
    if settings.policy_loss is not None and find_part("loss", settings.policy_loss) is None:
        open_loss(algorithm)  # report an invalid reference before the first step
    if kind.needs & {"teacher", "distribution", "privileged"} and settings.use_kl_in_reward:
        raise ConfigError(
            f"{name} learns from a teacher and cannot be combined with KL penalties in the reward.",
            where=f"{SECTION}.use_kl_in_reward",
            expected="false; trainer_common.use_kl_loss adds a KL term to the loss",
        )
    if "reference" in kind.needs and not settings.use_kl_in_reward:
        raise ConfigError(
            f"{name} needs the reference model's log-probabilities, but use_kl_in_reward is false.",
            where=KEY,
            expected="use_kl_in_reward: true",
            do=f"set {SECTION}.use_kl_in_reward: true, and its coefficient",
        )
    return algorithm


def open_loss(algorithm: Algorithm) -> PolicyLoss:
    """Open the loss named in the settings, else the algorithm's. Raise UnresolvedReferenceError or ConfigError."""
    name = algorithm.settings.policy_loss
    if name is None:
        from ajet.algorithm.losses.own import OwnLoss

        return OwnLoss(algorithm)
    return make_loss(name, algorithm.base, algorithm.settings)


def make_loss(name: str, base: str, settings: Settings) -> PolicyLoss:
    """Make the loss of a built-in name or a user's reference. Raises UnresolvedReferenceError.

    Args:
        base: The folder of a user's `file.py->Class`.
    """
    from ajet.algorithm.losses.contract import PolicyLoss

    part = find_part("loss", name)
    kind: type[PolicyLoss] = (
        load_code(part.code)
        if part is not None
        else resolve_reference(name, base=Path(base), expect=PolicyLoss, key=LOSS_KEY)
    )
    loss = kind(settings)
    loss.name = name
    loss.base = base
    loss.made_by = make_loss
    return loss


def _resolve_own_algorithm(reference: str, base: Path) -> type[Algorithm]:
    """Return the class that a reference names. Raises ConfigError if it lacks a method or has unknown needs."""
    kind: type[Algorithm] = resolve_reference(reference, base=base, expect=Algorithm, key=KEY)
    needs_critic = "critic" in kind.needs
    if needs_critic and kind.of_values is Algorithm.of_values:
        raise ConfigError(
            f"{reference} needs a critic, but does not define of_values.",
            where=KEY,
            expected="of_values(self, rewards_E_T, values_E_T), returning advantages and returns",
        )
    if not needs_critic and kind.of_group is Algorithm.of_group and kind.advantages is Algorithm.advantages:
        raise ConfigError(
            f"{reference} defines neither of_group nor advantages.",
            where=KEY,
            expected=f"a class such as {spell_reference('algorithm')} with of_group(self, returns_G), or "
            "advantages(self, rewards_E, penalties_E_T, groups_E)",
        )
    unknown = sorted(set(kind.needs) - set(get_args(Need)))
    if unknown:
        raise ConfigError(
            f"{reference} has unknown needs: {', '.join(map(str, unknown))}.",
            where=KEY,
            expected=f"needs = frozenset() with some of {', '.join(get_args(Need))}",
        )
    return kind


# Convert exceptions of a user's algorithm into a UserError with file and line.
# Invariant: exceptions of built-in algorithms pass through unchanged, because they are bugs of ajet.
TRIAL_RETURNS = (0.0, 1.0, 0.0, 0.5)
"""Returns of the trial group for an algorithm, used before a run."""


@contextmanager
def explain_failures(algorithm: Algorithm) -> Iterator[None]:
    """Convert an exception of a user's algorithm into a UserError with the failing line."""
    try:
        yield
    except AjetError:
        raise
    except Exception as problem:
        location = _find_line(algorithm, problem)
        if not location:
            raise
        raise UserError(
            f"{algorithm.name} raised {type(problem).__name__}: {problem}.",
            where=location,
            do=f"correct the algorithm; `{format_command('config', 'validate')}` tries of_group with the "
            f"returns {list(TRIAL_RETURNS)}",
        ) from problem


def require_finite(algorithm: Algorithm, rows: Sequence[Row], rewards: Row) -> None:
    """Raise UserError for advantages with NaN or infinity. `rewards`: [E] of the same episodes."""
    invalid_rows = [index for index, row in enumerate(rows) if not np.isfinite(row).all()]
    if invalid_rows:
        raise UserError(
            f"{algorithm.name} returned NaN or infinite advantages for {len(invalid_rows)} of {len(rows)} episodes.",
            where=f"rewards {np.round(rewards[:8], 4).tolist()}, "
            f"advantages {[float(row[0]) for row in rows[:8] if row.size]}",
            expected="a finite number for each trained token of each episode",
            do="avoid divisions by zero: the rewards of a group may all be equal",
        )


def try_group(algorithm: Algorithm) -> None:
    """Test a user's algorithm on a group of returns. Raise UserError if the test fails.

    Algorithms with a critic, or with their own `advantages` or `of_episodes`, are skipped.
    """
    kind = type(algorithm)
    has_own_rows = kind.advantages is not Algorithm.advantages or kind.of_episodes is not Algorithm.of_episodes
    if find_part("algorithm", algorithm.name) or has_own_rows or "critic" in algorithm.needs:
        return
    returns = np.array(TRIAL_RETURNS)
    with explain_failures(algorithm):
        advantages_E_T = algorithm.advantages(returns, [np.zeros(1)] * len(TRIAL_RETURNS), [0] * len(TRIAL_RETURNS))
    require_finite(algorithm, advantages_E_T, returns)


def _find_line(algorithm: Algorithm, problem: Exception) -> str:
    """Return file:line of the last traceback line in the algorithm's file, or "" if there is no match."""
    if type(algorithm).__module__.partition(".")[0] in list_packages():
        return ""
    try:
        file = inspect.getsourcefile(type(algorithm))
    except TypeError:
        return ""
    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return f"{lines[-1].filename}:{lines[-1].lineno} ({lines[-1].line})" if lines else ""
