"""What Ray's processes take for `ajet`.

Invariant: it is the package of the process that started the run. Ray puts that one's working directory before
everything else in `sys.path`, when a process gets its first task; where another package of our name lies there (a
clone of AgentJet), ours is loaded before that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import ajet
from ajet.config.programs import holds_another

ROOT = str(Path(ajet.__file__).resolve().parents[1])
"""Where ours lies, on this machine; a node that has it elsewhere finds it by itself."""


def build_setup_hook(folders: Iterable[str]) -> dict[str, Any]:
    """What a `runtime_env` needs of it, given the folders that come before ours there: nothing, mostly."""
    if not any(map(holds_another, folders)):
        return {}
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no process could import it by its name
    return {"worker_process_setup_hook": load_own_package}


def load_own_package() -> None:
    """Load the package of this run in such a process, before it does anything."""
    sys.path.insert(0, ROOT)
    import_module("ajet")
    sys.path.remove(ROOT)
