"""Finds the settings that differ between the runs of a folder, as columns of the run table.

Invariant: the compared settings are those that a resume must not change (`run.json`, without secrets), or the resolved
settings of runs that are never resumed. Equal settings give no column. A file is read again only after a change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ajet.config import read_recorded_tree
from ajet.record.files import read_json
from ajet.record.plain_json import strict_json
from ajet.record.resume import FILE
from ajet.schema.errors import ConfigError
from ajet_viewer.config_page import flatten_tree

MOST_KEYS = 200
LONGEST = 80
"""Maximum number of characters of a value."""
NAMES = frozenset(f"ajet.{name}" for name in ("experiment_name", "experiment_dir", "project_name"))
"""Keys that only name a run and are not compared."""

Value = str | int | float | bool | None


class RunSettings:
    """Reads the settings of runs, and caches them until their file changes."""

    def __init__(self) -> None:
        self._parsed_settings: dict[Path, tuple[tuple[int, int], dict[str, Value]]] = {}

    def of(self, folder: Path) -> dict[str, Value]:
        """Return the settings of a run by dotted key, with lists as text, or {} if they cannot be read."""
        # run.json has the settings that a resume must not change; runs that are never resumed have resolved.yaml only.
        for name, read_settings in ((FILE, _read_identity), ("resolved.yaml", _read_resolved)):
            path = folder / name
            try:
                status = path.stat()
            except OSError:
                continue
            state = (status.st_mtime_ns, status.st_size)
            if self._parsed_settings.get(path, (None,))[0] != state:
                self._parsed_settings[path] = (
                    state,
                    {key: _shorten_value(value) for key, value in read_settings(path) if key not in NAMES},
                )
            return self._parsed_settings[path][1]
        return {}


SEED = "ajet.seed"
OFF_UNLESS = {"kl": ("ajet.trainer_common.use_kl_loss", "ajet.trainer_common.algorithm.use_kl_in_reward")}
"""Maps a curve to settings. If none of them is on, the curve shows only rounding noise."""


def hash_without_seed(settings: dict[str, Value]) -> str | None:
    """Return a hash that is equal for runs that differ only in their seed, or None if the seed is unknown."""
    if SEED not in settings:
        return None
    other_settings = strict_json(sorted((key, value) for key, value in settings.items() if key != SEED))
    return hashlib.blake2b(other_settings.encode(), digest_size=8).hexdigest()


def list_off_curves(settings: dict[str, Value]) -> list[str]:
    """Return the names of the curves that show only rounding noise, because their term is off in the run."""
    return [
        curve
        for curve, keys in OFF_UNLESS.items()
        if any(key in settings for key in keys) and not any(settings.get(key) for key in keys)
    ]


def find_differing_keys(runs: Iterable[dict[str, Value]]) -> list[str]:
    """Return the keys that have different values in several runs, sorted, at most MOST_KEYS."""
    values_by_key: dict[str, set[str]] = {}
    for settings in runs:
        for key, value in settings.items():
            values_by_key.setdefault(key, set()).add(repr(value))
    return sorted(key for key, values in values_by_key.items() if len(values) > 1)[:MOST_KEYS]


def _read_identity(path: Path) -> list[tuple[str, Any]]:
    """Return the (key, value) pairs of the training settings in a run.json, or [] if it cannot be read."""
    try:
        training = read_json(path).get("training")
    except (OSError, ValueError):
        return []
    return list(training.items()) if isinstance(training, dict) else []


def _read_resolved(path: Path) -> list[tuple[str, Any]]:
    """Return the (dotted key, value) pairs of a resolved.yaml, or [] if it cannot be read."""
    try:
        return list(flatten_tree(read_recorded_tree(path)))
    except (ConfigError, OSError):
        return []


def _shorten_value(value: Any) -> Value:
    """Return a simple value unchanged, and anything else as text of at most LONGEST characters."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else strict_json(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
