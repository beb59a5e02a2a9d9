"""The package `ajet` of Ray's processes.

Invariant: Ray's processes use the package of the run's own process. Ray puts the working directory first in `sys.path`
with a process's first task. If the directory holds another package of the same name (a clone of AgentJet), ajet is
loaded before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import ajet
from ajet.config.programs import holds_other_ajet

ROOT = str(Path(ajet.__file__).resolve().parents[1])
"""The folder of ajet on the machine. A node with another folder finds ajet without help."""


def build_setup_hook(folders: Iterable[str]) -> dict[str, Any]:
    """Return entries of a `runtime_env`, given the folders before ajet's there: usually none."""
    if not any(map(holds_other_ajet, folders)):
        return {}
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no process could import it by its name
    return {"worker_process_setup_hook": load_own_package}


def load_own_package() -> None:
    """Load the run's package in a new process, before any task."""
    sys.path.insert(0, ROOT)
    import_module("ajet")
    sys.path.remove(ROOT)
