"""Builds the page with a run's configuration: each key with its value and origin, the place where it was set.

Invariant: values come from the run's `resolved.yaml`, origins from `origins.json`, as `ajet config why` would print at
the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet.config import read_recorded_tree
from ajet.config.record_file import read_record_file
from ajet.config.recorded import MOST_BYTES
from ajet.record.files import read_json
from ajet.record.plain_json import plain
from ajet.record.run_directory import ORIGINS
from ajet.schema.errors import ConfigError


def build_config_page(folder: Path) -> dict[str, Any]:
    """Return a run's configuration for the page.

    Returns:
        keys: a list of {key, value, origin}; origins are "" if the run's origins.json is damaged. given: text of the
        user's YAML. commands: the command lines that started the run.
    """
    origins = _read_origins(folder / ORIGINS)
    keys = [
        {"key": key, "value": plain(value), "origin": origins.get(key, "default") if origins else ""}
        for key, value in flatten_tree(_read_tree(folder / "resolved.yaml"))
    ]
    return {"keys": keys, "given": _read_text(folder / "given.yaml"), "commands": _read_text(folder / "command")}


def flatten_tree(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each leaf of nested mappings. An empty mapping is a leaf."""
    if isinstance(tree, Mapping) and (tree or not prefix):
        for name, value in tree.items():
            yield from flatten_tree(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def _read_origins(path: Path) -> dict[str, str]:
    """Return the origin of each key in origins.json, or {} if the file is missing or damaged."""
    try:
        return {key: str(origin) for key, origin in read_json(path).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _read_tree(path: Path) -> dict[str, Any]:
    """Return the settings of a resolved.yaml, or {} if it cannot be parsed."""
    try:
        return read_recorded_tree(path)
    except ConfigError:
        return {}


def _read_text(path: Path) -> str:
    """Return the text of a recorded file, or "" if it cannot be read."""
    try:
        return read_record_file(path, MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
