"""Composes a YAML and overrides into a typed, checked `Experiment`.

Input: a YAML file or a dict, `--backbone` (the trainer integration), `key=value` overrides. Output: an `Experiment`
with the typed section `ajet`, and `resolve_reference` for classes named in a YAML. A run starts with `load_experiment`.
Records (folders of earlier runs) are read as data with `load_recorded_experiment` and `read_recorded_tree`. Invariant:
every value has an origin for error messages. The working directory and a backbone's package have no influence, and
torch is never imported.
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
    """Return a public name, whose module is imported at first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'ajet.config' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
