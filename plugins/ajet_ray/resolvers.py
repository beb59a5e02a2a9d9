"""The resolvers of the layers of verl and Trinity: pure functions of what the YAML hands them.

Invariant: nothing but these turns an `ajet.*` value into another one for verl. They are registered on first use and
change nothing else of OmegaConf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ajet.config.schema.trainer_common import STALE_CAP
from ajet_ray.modes import SYNC

_NO_DEFAULT = object()


def div(total: float, parts: float) -> int:
    """`whole / parts`, which must be a whole number. Raises ValueError otherwise."""
    quotient, rest = divmod(total, parts)
    if rest:
        raise ValueError(f"{total} is not divisible by {parts}")
    return int(quotient)


def mul(one: float, other: float) -> float:
    """The product."""
    return one * other


def as_list(value: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def pick(value: Any, table: Mapping[Any, Any], otherwise: Any = _NO_DEFAULT) -> Any:
    """What the table says of the value; what it does not hold is `otherwise`, or else stays as it is."""
    if isinstance(value, str | int | float | bool | None) and value in table:
        return table[value]
    return value if otherwise is _NO_DEFAULT else otherwise


def room(tokens: int, longest: int, parts: int) -> int:
    """Tokens of a pass on one GPU: `tokens`, but enough for its part of the longest sequence split over `parts`."""
    return max(tokens, -(-longest // parts))


def versions(staleness: int | None) -> int | None:
    """How many policy versions an episode may span that is trained `staleness` steps late; null has no limit."""
    return None if staleness is None else staleness + 1


def cap(value: float | str | None, mode: str) -> float | str | None:
    """`is_cap`, with what `auto` is in a mode of verl's trainer, whoever chose that: null where the same weights sample
    and train."""
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
    """Make them known to OmegaConf."""
    from omegaconf import OmegaConf

    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
