"""What of an experiment travels to verl's processes, and the experiment again at the other end.

Invariant: it is the resolved YAML, so whatever reads it composes the same experiment; secrets stay in the environment
or in the `.env` beside the YAML. On a node without the YAML's folder the working directory is a copy of it.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet"
"""Where it lies in verl's `data` section, the only one that verl hands to a data set."""


def carried(experiment: Experiment, *, run_id: str) -> dict[str, Any]:
    """The values for `data.ajet`."""
    return {
        "yaml": experiment.resolved_yaml(),
        "name": experiment.name,
        "base": str(experiment.base),
        "root": str(experiment.root),
        "run_id": run_id,
    }


def restored(about: Any) -> Experiment:
    """The experiment that `data.ajet` carries."""
    return _restored(about["yaml"], about["name"], about["base"], about["root"])


@lru_cache(maxsize=1)
def _restored(yaml: str, name: str, base: str, root: str) -> Experiment:
    from ajet.config import Experiment
    from ajet.config.dotenv import load_dotenv_files

    folder = Path(base)
    if not folder.is_dir():
        folder = Path(os.getcwd())
        yaml = yaml.replace(base, str(folder))
    load_dotenv_files([folder])
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return Experiment.from_text(yaml, folder / f"{name}.yaml", root=Path(root))
