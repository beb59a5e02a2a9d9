"""The algorithm of an experiment: one that comes with ajet, by name, or the user's own, by reference.

Invariant: both are found as a reference is, made with the settings alone and held to the contract here, before a step;
what is wrong is one UserError.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ajet.algorithm.contract import Algorithm
from ajet.config.algorithms import ALGORITHMS, OWN, Need
from ajet.config.references import load_code, resolve_reference
from ajet.schema.errors import ConfigError, UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.config.schema.trainer_common import Algorithm as Settings

SECTION = "ajet.trainer_common.algorithm"
KEY = f"{SECTION}.adv_estimator"


def opened(config: AjetConfig, *, base: Path | None = None) -> Algorithm:
    """The algorithm that `config` names. `base`: the folder that a reference is relative to; None: `base_dir`, else the
    working directory. Raises UnresolvedReference, ConfigError, or the UserError that a user's class raises."""
    settings = config.trainer_common.algorithm
    return made(settings.adv_estimator, str(base or config.base_dir or Path.cwd()), settings)


def made(name: str, base: str, settings: Settings) -> Algorithm:
    """The same from its parts."""
    kind: type[Algorithm] = load_code(ALGORITHMS[name].code) if name in ALGORITHMS else _own(name, Path(base))
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
    algorithm.name, algorithm.base = name, base
    if "reference" in kind.needs and not settings.use_kl_in_reward:
        raise ConfigError(
            f"{name} needs the reference model's logprobs, and nothing asks for them.",
            where=KEY,
            expected="KL penalties in the reward",
            do=f"set {SECTION}.use_kl_in_reward: true, and its coefficient",
        )
    return algorithm


def _own(reference: str, base: Path) -> type[Algorithm]:
    kind: type[Algorithm] = resolve_reference(reference, base=base, expect=Algorithm, what=KEY)
    if kind.of_group is Algorithm.of_group and kind.advantages is Algorithm.advantages:
        raise ConfigError(
            f"{reference} does not say what an attempt's advantage is.",
            where=KEY,
            expected=f"a class such as {OWN} with of_group(self, returns_G), or advantages(self, rewards_E, "
            "penalties_E_T, groups_E)",
        )
    unknown = sorted(set(kind.needs) - set(get_args(Need)))
    if unknown:
        raise ConfigError(
            f"{reference} needs {', '.join(map(str, unknown))}, which no algorithm is given.",
            where=KEY,
            expected=f"needs = frozenset() with some of {', '.join(get_args(Need))}",
        )
    return kind
