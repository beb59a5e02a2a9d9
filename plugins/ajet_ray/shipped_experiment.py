"""What of an experiment travels to verl's processes, and the experiment again at the other end.

Invariant: it is the resolved YAML, so whatever reads it composes the same experiment; secrets stay in the environment
or in the `.env` beside the YAML, and one that the YAML itself holds goes into the environment that the processes of
this machine inherit. On a node without the YAML's folder the working directory is a copy of it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet"
"""Where it lies in verl's `data` section, the only one that verl hands to a data set."""


def pack_experiment(experiment: Experiment, *, run_id: str) -> dict[str, Any]:
    """The values for `data.ajet`."""
    return {
        "yaml": experiment.resolved_yaml(hide=_store_secret),
        "name": experiment.name,
        "base": str(experiment.base),
        "root": str(experiment.root),
        "run_id": run_id,
    }


def _store_secret(secret: str) -> str:
    """A reference to it, for processes that have this one's environment."""
    name = f"AJET_LITERAL_{hashlib.blake2b(secret.encode(), digest_size=8).hexdigest()}"
    os.environ[name] = secret
    return f"${{oc.env:{name}}}"


def restore_experiment(about: Any) -> Experiment:
    """The experiment that `data.ajet` carries."""
    return _compose_experiment(about["yaml"], about["name"], about["base"], about["root"])


@lru_cache(maxsize=1)
def _compose_experiment(yaml: str, name: str, base: str, root: str) -> Experiment:
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
