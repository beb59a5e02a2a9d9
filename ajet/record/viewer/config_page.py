"""A run's configuration, key by key, with where each value comes from.

Invariant: the values are those of the run's own `resolved.yaml`, the origins those that `ajet config why` would have
said when it began (`origins.json`). Runs of before that kept none are told by their YAML and command lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet.config import recorded_tree
from ajet.config.record_file import read_record_file
from ajet.config.recorded import MOST_BYTES
from ajet.record.bounded_json import read_json
from ajet.record.plain_json import plain
from ajet.record.run_directory import ORIGINS
from ajet.schema.errors import ConfigError


def config_page(folder: Path) -> dict[str, Any]:
    """{keys: [{key, value, origin}], given, commands}."""
    resolved, given = _tree(folder / "resolved.yaml"), _tree(folder / "given.yaml")
    commands = _text(folder / "command")
    written = dict(flat(given))
    overridden = set(re.findall(r"(?:^|\s)['\"]?\+{0,2}([\w.]+)=", commands))
    known = _origins(folder / ORIGINS)
    keys = []
    for key, value in flat(resolved):
        short = key.removeprefix("ajet.")
        if known is not None:
            origin = known.get(key, "default")
        elif short in overridden or key in overridden:
            origin = "command line"
        elif key in written or any(key.startswith(f"{other}.") for other, found in written.items() if found == {}):
            origin = "given.yaml"
        else:
            origin = "default"
        keys.append({"key": key, "value": plain(value), "origin": origin})
    return {"keys": keys, "given": _text(folder / "given.yaml"), "commands": commands}


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; an empty mapping is a leaf."""
    if isinstance(tree, Mapping) and (tree or not prefix):
        for name, value in tree.items():
            yield from flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def _origins(path: Path) -> dict[str, str] | None:
    try:
        return {key: str(place) for key, place in read_json(path).items()}
    except (OSError, ValueError, AttributeError):
        return None


def _tree(path: Path) -> dict[str, Any]:
    try:
        return recorded_tree(path)
    except ConfigError:
        return {}


def _text(path: Path) -> str:
    try:
        return read_record_file(path, MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
