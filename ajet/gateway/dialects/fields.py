"""Fields: small checks of a request's JSON. Each raises Refused, naming the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.gateway.turn import Refused


def wrong(param: str, expected: str) -> Refused:
    """The refusal of a value of the wrong kind."""
    return Refused(f"Invalid value for '{param}': expected {expected}.", param=param, code="invalid_value")


def unsupported(param: str, why: str) -> Refused:
    """The refusal of a value that cannot be honoured."""
    return Refused(f"Unsupported value for '{param}': {why}", param=param, code="unsupported_value")


def integer(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """An integer within bounds; None if absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(name, f"an integer from {low} to {high}")
    return value


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number within bounds; None if absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise wrong(name, f"a number from {low:g} to {high:g}")
    return float(value)


def boolean(body: Mapping[str, Any], name: str, default: bool) -> bool:
    """A boolean."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "a boolean")
    return value


def text(value: Any, param: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(param, "a non-empty string")
    return value
