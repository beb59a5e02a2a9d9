"""From a composed tree to `AjetConfig`, with errors that say where.

Invariant: a value that the schema refuses, a key that it does not know and a placeholder that was not filled in are
reported together, each with the file, line and column (or the override) that holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ajet.config.compose import Layers
from ajet.config.document import KeyPath, leaves
from ajet.config.keys import find_key, keys_of, unknown_key
from ajet.config.schema import AjetConfig
from ajet.config.schema.accepted import changed, without_accepted
from ajet.config.schema.base import described, type_name
from ajet.config.schema.extended import config_model
from ajet.schema.errors import ConfigError

PLACEHOLDER = re.compile(r"<YOUR_[^<>]*>")
_SHOWN = 8
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_NONE = "YAML has no None: [] is an empty list, null is no value"


def validated(tree: Mapping[str, Any], layers: Layers) -> AjetConfig:
    """The typed config of a resolved tree (`{"ajet": …, …}`). Raises ConfigError."""
    problems = [_placeholder(path, value, layers) for path, value in leaves(dict(tree)) if _unfilled(value)]
    problems += [_not_here(("ajet", *path), value, why, layers) for path, value, why in changed(tree["ajet"])]
    try:
        config = config_model().model_validate(without_accepted(tree["ajet"]))
    except ValidationError as error:
        known = {problem.where for problem in problems}
        found = _explained(error, layers)
        problems += [problem for problem in found if problem.where not in known]
    if problems:
        raise together(problems)
    return config


def _unfilled(value: Any) -> bool:
    return isinstance(value, str) and (value == "???" or PLACEHOLDER.search(value) is not None)


def _placeholder(path: KeyPath, value: str, layers: Layers) -> ConfigError:
    field = find_key(path[1:]) if path[0] == "ajet" else None
    return ConfigError(
        f"{_shown(path)} still reads {value}.",
        where=layers.where(path, value=True),
        expected=described(field) if isinstance(field, FieldInfo) else "a value of your own",
        do="put your own value there",
    )


def _not_here(path: Sequence[Any], value: Any, sentence: str, layers: Layers) -> ConfigError:
    return ConfigError(sentence, where=f"{layers.where(tuple(path), value=True)} ({_shown(path)}: {value})")


def _explained(error: ValidationError, layers: Layers) -> list[ConfigError]:
    found: dict[KeyPath, ConfigError] = {}
    for item in error.errors(include_url=False):
        path = tuple(item["loc"])
        if item["type"] == "extra_forbidden":
            found.setdefault(path, unknown_key(path, where=layers.where(("ajet", *path)), value=item["input"]))
            continue
        while path and find_key(path) is None:  # pydantic appends the names of union members
            path = path[:-1]
        if path not in found:
            found[path] = _refused(path, item, layers)
    return list(found.values())


def _refused(path: KeyPath, item: Any, layers: Layers) -> ConfigError:
    field = find_key(path)
    value = _value_at(item, path)
    expected = expectation(field) if isinstance(field, FieldInfo) else keys_of(field)
    if item["type"] == "value_error":
        said = str(item["ctx"]["error"])
        expected = said if said.startswith("one of") else expected
    for name, bound in item.get("ctx", {}).items():  # of one member of a list or a union, the field has none
        if (words := _BOUNDS.get(name)) and words not in expected:
            expected += f", {words} {bound:g}"
    near = get_close_matches(str(value), [str(arg) for arg in _literals(field)], 1)
    return ConfigError(
        f"ajet.{'.'.join(map(str, path))} is {value!r}.",
        where=layers.where(("ajet", *path), value=True),
        expected=expected,
        do=f"did you mean {near[0]}?" if near else _NONE if value == "None" else "",
    )


def _value_at(item: Any, path: KeyPath) -> Any:
    """The refused value; `SECRET` values never print."""
    field = find_key(path)
    extra = field.json_schema_extra if isinstance(field, FieldInfo) else None
    if isinstance(extra, dict) and extra.get("kind") == "secret":
        return "(hidden)"
    return item["input"]


def expectation(field: FieldInfo) -> str:
    """The type and bounds of a key, in words."""
    words = [type_name(field.annotation)]
    for bound in field.metadata:
        words += [f"{text} {getattr(bound, name)}" for name, text in _BOUNDS.items() if hasattr(bound, name)]
    return ", ".join(words)


def _literals(field: Any) -> list[Any]:
    def inside(annotation: Any) -> list[Any]:
        args = get_args(annotation)
        if str(annotation).startswith("typing.Literal"):
            return list(args)
        return [value for arg in args for value in inside(arg)]

    return inside(field.annotation) if isinstance(field, FieldInfo) else []


def _shown(path: Sequence[Any]) -> str:
    return ".".join(str(part) for part in path)


def together(problems: list[ConfigError]) -> ConfigError:
    """One error for all: the first as it is when it is alone, a list otherwise."""
    if len(problems) == 1:
        return problems[0]
    rows = []
    for problem in problems[:_SHOWN]:
        more = "; ".join(
            text for text in (f"expected {problem.expected}" if problem.expected else "", problem.do) if text
        )
        rows.append(f"{problem.where}\n    {problem.what}{' ' + more[:1].upper() + more[1:] if more else ''}")
    if len(problems) > _SHOWN:
        rows.append(f"and {len(problems) - _SHOWN} more")
    return ConfigError(f"{len(problems)} settings can't be used:\n  " + "\n  ".join(rows), do="mend these places")
