"""Reads values of a SQLite store that another program may have changed: each is checked before it is believed.

Invariant: no value of the file raises anything but DamagedRow. A row that nothing depends on is left out instead.
"""

from __future__ import annotations

import math
from typing import Any, get_args

from ajet.record.bounded_json import parse_json
from ajet.schema.errors import AjetError
from ajet.store.shared import Announced, Member, Policy, Role

LONGEST_VALUE = 60
"""Characters of a wrong value that a message quotes."""


class DamagedRow(AjetError):
    """A row holds what ajet never wrote."""


def read_count(name: str, row: tuple[Any, ...] | None) -> int:
    """The value of a row of `counts`."""
    if row is None or not isinstance(row[0], int):
        raise DamagedRow(f"the count {name!r} is {_quote(row and row[0])}")
    return row[0]


def read_position(row: tuple[Any, ...]) -> int:
    """The position that an attempt's row names."""
    if not isinstance(row[0], int):
        raise DamagedRow(f"an attempt is of position {_quote(row[0])}")
    return row[0]


def read_reasons(text: object) -> list[str]:
    """The reasons of a position. Ones that cannot be read count as one: they are for people."""
    try:
        found = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    return [f"its earlier reasons cannot be read: {_quote(text)}"]


def read_member(row: tuple[Any, ...], now: float) -> Member | None:
    """The member of a row (role, name, seen, joined, told, leases); None: ajet never wrote it."""
    role, name, seen, joined, told, leases = row
    try:
        found = parse_json(told) if isinstance(told, str) else None
    except ValueError:
        return None
    if not (isinstance(name, str) and role in get_args(Role) and isinstance(found, dict)):
        return None
    if not (_is_time(seen) and _is_time(joined)):
        return None
    return Member(role, name, now - seen, now - joined, leases, found)


def read_announced(row: tuple[Any, ...], now: float) -> Announced:
    """The announced policy of a row (said, trainer, time)."""
    said, trainer, time = row
    try:
        policy = Policy(**parse_json(said))
    except (TypeError, ValueError) as error:
        raise DamagedRow(f"the announced policy is {_quote(said)}") from error
    texts = (policy.run, policy.weights, policy.lineage, policy.tokenizer, policy.template)
    numbers = (policy.step, trainer, 0 if policy.below is None else policy.below)
    if not (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, int) for each in numbers)
        and isinstance(policy.told, dict)
        and _is_time(time)
    ):
        raise DamagedRow(f"the announced policy is {_quote(said)}")
    return Announced(policy, trainer, now - time)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
