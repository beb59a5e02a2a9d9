"""Fields: small checks of a request's JSON. Each raises Refused, naming the field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


def boolean(body: Mapping[str, Any], name: str, default: bool, where: str = "") -> bool:
    """A boolean; `where` is the place of `body` in the request."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(f"{where}.{name}" if where else name, "a boolean")
    return value


def text(value: Any, param: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(param, "a non-empty string")
    return value


def refuse_unknown(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse the first field that is given and not known."""
    for name in body:
        if name not in known and body[name] is not None:
            raise Refused(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")


def not_neutral(body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The fields of `neutral` that ask for something: given, and none of their neutral values."""
    if neutral.keys().isdisjoint(body):  # most requests
        return {}
    return {
        name: body[name]
        for name, values in neutral.items()
        if body.get(name) is not None and body[name] not in values and not _biases_nothing(name, body[name])
    }


def _biases_nothing(name: str, value: Any) -> bool:
    return name == "logit_bias" and isinstance(value, dict) and not any(value.values())


def given(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The fields of `names` that are there, in their order."""
    return {name: value for name, value in body.items() if name in names and value is not None}


def top_p(body: Mapping[str, Any]) -> float | None:
    """Nucleus sampling's bound, in (0, 1]."""
    value = number(body, "top_p", 0, 1)
    if value == 0:
        raise wrong("top_p", "a number above 0 and up to 1")
    return value


def top_k(body: Mapping[str, Any]) -> int | None:
    """The number of likeliest tokens to draw from; -1: all."""
    value = integer(body, "top_k", -1, 1 << 31)
    return -1 if value == 0 else value


def stop_strings(value: Any) -> tuple[str, ...]:
    """Stop sequences: a string, or a list of up to 16."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or len(value) > 16:
        raise wrong("stop", "a string or a list of at most 16 strings")
    return tuple([text(stop, "stop") for stop in value])


def seed(body: Mapping[str, Any]) -> int | None:
    """A seed; None if absent or null."""
    return integer(body, "seed", -(1 << 63), (1 << 63) - 1)


def include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    """Whether a stream ends with its usage."""
    options = body.get("stream_options")
    if options is not None and not (isinstance(options, dict) and stream):
        raise wrong("stream_options", "an object, and 'stream' to be true")
    return boolean(options or {}, "include_usage", False)


def model(body: Mapping[str, Any]) -> str | None:
    """The model's name."""
    value = body.get("model")
    if value is not None and not isinstance(value, str):
        raise wrong("model", "a string")
    return value or None
