"""Compose a YAML and overrides into a typed, checked `Experiment`.

Input: a YAML file or a dict, `--backbone`, `key=value` overrides. Output: an `Experiment` with the typed `ajet`, and
`resolve_reference` for classes that a YAML names. A run starts with `load_experiment`; records are read as data with
`load_recorded_experiment` and `read_recorded_tree`. Invariant: every value has an origin that an error can name.
Nothing depends on the working directory or on a backbone's package, and torch is never imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "AjetConfig": "ajet.config.schema",
    "Experiment": "ajet.config.experiment",
    "load_experiment": "ajet.config.experiment",
    "View": "ajet.config.view",
    "load_recorded_experiment": "ajet.config.recorded",
    "read_recorded_tree": "ajet.config.recorded",
    "resolve_reference": "ajet.config.references",
}
__all__ = [
    *("AjetConfig", "Experiment", "View", "load_experiment", "load_recorded_experiment", "read_recorded_tree"),
    "resolve_reference",
]

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment as Experiment
    from ajet.config.experiment import load_experiment as load_experiment
    from ajet.config.recorded import load_recorded_experiment as load_recorded_experiment
    from ajet.config.recorded import read_recorded_tree as read_recorded_tree
    from ajet.config.references import resolve_reference as resolve_reference
    from ajet.config.schema import AjetConfig as AjetConfig
    from ajet.config.view import View as View


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ajet.config' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
