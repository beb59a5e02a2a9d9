"""OmegaConf resolvers used by the YAML files that translate `ajet.*` settings for verl and Trinity.

Invariant: only these functions transform `ajet.*` values for verl. They are registered on first use and change nothing
else of OmegaConf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ajet.config.schema.trainer_common import STALE_CAP
from ajet_ray.modes import SYNC

_NO_DEFAULT = object()


def div(total: float, parts: float) -> int:
    """Return `total / parts` as an integer. Raises ValueError if the division leaves a remainder."""
    quotient, remainder = divmod(total, parts)
    if remainder:
        raise ValueError(f"${{ajet.div:{total},{parts}}}: {total} is not divisible by {parts}")
    return int(quotient)


def mul(one: float, other: float) -> float:
    """Return the product of two numbers, since OmegaConf has no arithmetic."""
    return one * other


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, any other value as a list of a single element."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def pick(value: Any, table: Mapping[Any, Any], otherwise: Any = _NO_DEFAULT) -> Any:
    """Return the table's entry for a value, or `otherwise`, or the value itself if `otherwise` is not passed."""
    if isinstance(value, str | int | float | bool | None) and value in table:  # a list or dict cannot be looked up
        return table[value]
    return value if otherwise is _NO_DEFAULT else otherwise


def room(tokens: int, limit: int, parts: int) -> int:
    """Return the token limit of a GPU's forward pass, large enough for its part of the longest sequence.

    Args:
        tokens: configured limit.
        limit: tokens of the longest sequence.
        parts: number of GPUs over which a sequence is split (Ulysses).
    """
    return max(tokens, -(-limit // parts))  # limit / parts, rounded up


def versions(staleness: int | None) -> int | None:
    """Return how many policy versions can occur in an episode trained up to `staleness` steps late.

    These are the version before the update and `staleness` earlier ones. None (null in YAML) means no limit, for the
    argument and the result.
    """
    return None if staleness is None else staleness + 1


def cap(value: float | str | None, mode: str) -> float | str | None:
    """Return the importance-sampling cap, with `auto` replaced by the value for verl's trainer mode.

    `auto` becomes None (no cap) in the synchronous mode, where the same weights sample and train.
    """
    return value if value != "auto" else None if mode == SYNC else STALE_CAP


RESOLVERS: dict[str, Callable[..., Any]] = {
    "ajet.cap": cap,
    "ajet.div": div,
    "ajet.mul": mul,
    "ajet.list": as_list,
    "ajet.pick": pick,
    "ajet.room": room,
    "ajet.versions": versions,
}


def register_resolvers() -> None:
    """Register `RESOLVERS` with OmegaConf, so that YAML files can contain `${ajet.div:8,2}`. Idempotent."""
    from omegaconf import OmegaConf

    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
