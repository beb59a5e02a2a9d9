"""Validate a composed tree into `AjetConfig`, with the place of each error.

Invariant: invalid values, unknown keys and unfilled placeholders are reported together, each with file, line and column
or the override.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ajet.config.compose import Layers
from ajet.config.document import KeyPath, list_leaves
from ajet.config.keys import describe_keys, find_key, make_unknown_key_error
from ajet.config.schema import AjetConfig
from ajet.config.schema.accepted import find_changed_keys, remove_accepted
from ajet.config.schema.base import describe_field, describe_type
from ajet.config.schema.extended import config_model
from ajet.schema.errors import ConfigError

PLACEHOLDER = re.compile(r"<YOUR_[^<>]*>")
_SHOWN = 8
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_NONE = "YAML has no None: write [] for an empty list, null for no value"


def validate_tree(tree: Mapping[str, Any], layers: Layers) -> AjetConfig:
    """Return the typed settings of a resolved configuration.

    Args:
        tree: The configuration by top-level name, with the key `ajet`.
        layers: The sources, to name the place of each error.

    Raises:
        ConfigError: Values are invalid, keys unknown, or placeholders of a template left. All are reported together.
    """
    problems = [
        _make_placeholder_error(path, value, layers)
        for path, value in list_leaves(dict(tree))
        if _is_placeholder(value)
    ]
    problems += [
        _make_changed_key_error(("ajet", *path), value, refusal, layers)
        for path, value, refusal in find_changed_keys(tree["ajet"])
    ]
    try:
        config = config_model().model_validate(remove_accepted(tree["ajet"]))
    except ValidationError as error:
        reported = {problem.where for problem in problems}
        validation_errors = _explain_errors(error, layers)
        problems += [problem for problem in validation_errors if problem.where not in reported]
    if problems:
        raise join_errors(problems)
    return config


def _is_placeholder(value: Any) -> bool:
    """Return True if a value is a template's placeholder, such as `<YOUR_MODEL>`, or OmegaConf's `???`."""
    return isinstance(value, str) and (value == "???" or PLACEHOLDER.search(value) is not None)


def _make_placeholder_error(path: KeyPath, value: str, layers: Layers) -> ConfigError:
    """Return the error for a key that still has a template's placeholder."""
    field = find_key(path[1:]) if path[0] == "ajet" else None
    return ConfigError(
        f"{_join_path(path)} still has the template's value {value}.",
        where=layers.locate(path, value=True),
        expected=describe_field(field) if isinstance(field, FieldInfo) else "your own value",
        do="replace the template's value",
    )


def _make_changed_key_error(path: Sequence[Any], value: Any, sentence: str, layers: Layers) -> ConfigError:
    """Return the error for a key whose value ajet refuses, with the reason as `sentence`."""
    return ConfigError(sentence, where=f"{layers.locate(tuple(path), value=True)} ({_join_path(path)}: {value})")


def _explain_errors(error: ValidationError, layers: Layers) -> list[ConfigError]:
    """Convert pydantic's errors to ConfigErrors, one for each key."""
    by_path: dict[KeyPath, ConfigError] = {}
    for item in error.errors(include_url=False):
        path = tuple(item["loc"])
        if item["type"] == "extra_forbidden":
            by_path.setdefault(
                path, make_unknown_key_error(path, where=layers.locate(("ajet", *path)), value=item["input"])
            )
            continue
        while path and find_key(path) is None:  # pydantic appends the names of union members
            path = path[:-1]
        if path not in by_path:
            by_path[path] = _explain_error(path, item, layers)
    return list(by_path.values())


def _explain_error(path: KeyPath, item: Any, layers: Layers) -> ConfigError:
    """Convert one error of pydantic to a ConfigError with the key's line, expected values and nearest match.

    Args:
        path: The key, below `ajet`.
        item: The error, as a dict of pydantic.
    """
    field = find_key(path)
    value = _get_shown_value(item, path)
    expected = describe_expected(field) if isinstance(field, FieldInfo) else describe_keys(field)
    if item["type"] == "value_error":
        message = str(item["ctx"]["error"])
        expected = message if message.startswith("one of") else expected
    for name, bound in item.get("ctx", {}).items():  # a bound may belong to a list or union member only
        if (phrase := _BOUNDS.get(name)) and phrase not in expected:
            expected += f", {phrase} {bound:g}"
    similar = get_close_matches(str(value), [str(arg) for arg in _list_literals(field)], 1)
    return ConfigError(
        f"ajet.{'.'.join(map(str, path))} is {value!r}.",
        where=layers.locate(("ajet", *path), value=True),
        expected=expected,
        do=f"did you mean {similar[0]}?" if similar else _NONE if value == "None" else "",
    )


def _get_shown_value(item: Any, path: KeyPath) -> Any:
    """Return the refused value of a pydantic error for the message, or "(hidden)" for a secret's key."""
    field = find_key(path)
    extra = field.json_schema_extra if isinstance(field, FieldInfo) else None
    if isinstance(extra, dict) and extra.get("kind") == "secret":
        return "(hidden)"
    return item["input"]


def describe_expected(field: FieldInfo) -> str:
    """Return the type and bounds of a key in words, such as "a number, at least 0"."""
    parts = [describe_type(field.annotation)]
    for bound in field.metadata:
        parts += [f"{text} {getattr(bound, name)}" for name, text in _BOUNDS.items() if hasattr(bound, name)]
    return ", ".join(parts)


def _list_literals(field: Any) -> list[Any]:
    """Return the values that the `Literal` types in a field's annotation allow, or []."""

    def inside(annotation: Any) -> list[Any]:
        args = get_args(annotation)
        if str(annotation).startswith("typing.Literal"):
            return list(args)
        return [value for arg in args for value in inside(arg)]

    return inside(field.annotation) if isinstance(field, FieldInfo) else []


def _join_path(path: Sequence[Any]) -> str:
    """Return a key's path as dotted text."""
    return ".".join(str(part) for part in path)


def join_errors(problems: list[ConfigError]) -> ConfigError:
    """Return one error that lists all problems. A single problem is returned unchanged."""
    if len(problems) == 1:
        return problems[0]
    rows = []
    for problem in problems[:_SHOWN]:
        advice = "; ".join(
            text for text in (f"expected {problem.expected}" if problem.expected else "", problem.do) if text
        )
        rows.append(f"{problem.where}\n    {problem.what}{' ' + advice[:1].upper() + advice[1:] if advice else ''}")
    if len(problems) > _SHOWN:
        rows.append(f"and {len(problems) - _SHOWN} more")
    return ConfigError(f"{len(problems)} settings cannot be used:\n  " + "\n  ".join(rows), do="correct these places")
