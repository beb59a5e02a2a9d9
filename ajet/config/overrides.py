"""Overrides: `key=value` on the command line, in Hydra's grammar.

Invariant: an override may omit the leading `ajet.`. An unknown key is an error with the nearest valid key. Sweeps and
Hydra's own settings are refused, so each override has a single meaning.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.config.keys import is_settable, list_top_names, make_unknown_key_error
from ajet.config.schema.accepted import map_moved_key
from ajet.schema.errors import ConfigError

_OPENERS = ("[", "{", "'", '"', "")
_SHAPE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^=]+)(?P<rest>=.*)?", re.S)


@dataclass(frozen=True)
class Override:
    """One `key=value` of the command line: as the user wrote it, in Hydra's form, and parsed."""

    written: str
    composed: str
    path: tuple[str, ...]
    value: Any


def parse_overrides(written: Sequence[str], *, roots: Collection[str], backbones: Collection[str]) -> list[Override]:
    """Return the parsed overrides of the command line, in their order.

    Args:
        roots: Top-level names of the YAML.
        backbones: Top-level names that belong to backbones.

    Raises:
        ConfigError: An override has another form, or names an unknown key.
    """
    return [_parse_override(text, roots, backbones) for text in written]


def find_overridden_key(text: str) -> tuple[str, ...] | None:
    """Return the path of the key that an override sets, or None if it is not a key of ajet."""
    shape = _SHAPE.fullmatch(text)
    path = tuple(shape["key"].strip().split(".")) if shape is not None else ()
    return path if path[:1] == ("ajet",) else ("ajet", *path) if path and is_settable(path) else None


def _parse_override(text: str, roots: Collection[str], backbones: Collection[str]) -> Override:
    """Parse one command-line override (`key=value`, `+key=value`, `~key`) with Hydra's grammar.

    A key without its root gets `ajet.` in front, and a value that Hydra cannot parse is taken as plain text.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    shape = _SHAPE.fullmatch(text)
    if shape is None or (shape["rest"] is None and shape["sign"] != "~"):
        do = f"write {text}=VALUE, without spaces" if shape is not None else ""
        raise _make_override_error(text, "an override must have the form key=value", do=do)
    sign, key, value_part = shape["sign"] or "", shape["key"].strip(), shape["rest"] or ""
    path = tuple(key.split("."))
    if path[0] == "hydra" or "/" in key or "@" in key:
        raise _make_override_error(text, "ajet does not support Hydra's own settings and config groups")
    if path[0] != "ajet" and path[0] not in backbones and (path[0] not in roots or is_settable(path)):
        if path[0] in list_top_names():
            path = ("ajet", *path)
        elif not sign and path[0] not in roots:
            raise _make_unknown_error(path, text, roots)
    if path[0] == "ajet":
        path = ("ajet", *map_moved_key(path[1:]))
    sign = _choose_sign(sign, path, text, backbones)
    composed = f"{sign}{'.'.join(path)}{value_part}"
    try:
        parsed = OverridesParser.create().parse_override(composed)
    except HydraException as error:
        if not value_part or value_part[1:].lstrip()[:1] in _OPENERS or "${" in value_part:
            raise _make_override_error(
                text, f"it does not follow Hydra's grammar ({_first_line(error)}); quote values with special characters"
            ) from error
        composed = f"{sign}{'.'.join(path)}={quote_value(value_part[1:])}"  # a value without an opener is text
        parsed = OverridesParser.create().parse_override(composed)
    if parsed.is_sweep_override():
        raise _make_override_error(text, "it contains several values; write a list as key=[a,b]")
    value = None if parsed.is_delete() else parsed.value()
    return Override(text, composed, path, _unquote_values(value))


def quote_value(text: str) -> str:
    """Return the text as a quoted string of Hydra's override grammar."""
    # Backslashes before a quote or at the end are doubled, as Hydra reads them there only.
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + "\\'", text)
    return "'" + re.sub(r"(\\+)$", lambda match: match[1] * 2, escaped) + "'"


def format_override(key: str, text: str) -> str:
    """Return `key=text` as one shell word that sets the key to exactly this text."""
    return (
        f"{key}={text}" if re.fullmatch(r"[\w./:@+-]+", text, re.ASCII) else shlex.quote(f"{key}={quote_value(text)}")
    )


def _make_unknown_error(path: tuple[str, ...], text: str, also: Collection[str] = ()) -> ConfigError:
    """Return the error for an override of an unknown key."""
    return make_unknown_key_error(path, where=f"override {text}", also=also)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _choose_sign(sign: str, path: tuple[str, ...], text: str, backbones: Collection[str]) -> str:
    """Return the prefix of an override for Hydra: `++` for keys that the composed tree may lack, else the user's.

    Keys may be missing in a backbone's section and below a free mapping; Hydra refuses to set a missing key without
    `++`.

    Raises:
        ConfigError: ajet has no such key.
    """
    if path[0] in backbones and not sign:
        return "++"
    if path[0] != "ajet":
        return sign
    if not is_settable(path[1:]):
        raise _make_unknown_error(path[1:], text)
    return "++" if sign != "~" else sign


def _unquote_values(value: Any) -> Any:
    """Return a value that Hydra parsed with plain strings in place of its quoted strings."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_unquote_values(name): _unquote_values(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_unquote_values(item) for item in value]
    return value


def _make_override_error(text: str, expected: str, do: str = "") -> ConfigError:
    """Return the error for an override that cannot be used.

    Args:
        expected: What is wrong, or the required form.
    """
    do = f"pass a YAML file after --conf: --conf {text}" if text.endswith((".yaml", ".yml")) else do
    return ConfigError(f"The override {text!r} cannot be used.", where="command line", expected=expected, do=do)
