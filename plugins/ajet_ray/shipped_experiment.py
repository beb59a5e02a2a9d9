"""The experiment's transfer to verl's processes.

Invariant: the resolved YAML travels, so every reader composes the same experiment. Secrets stay in the environment or
in the `.env` next to the YAML; literal secrets of the YAML are put into the environment inherited by processes on the
machine. On a node without the YAML's folder the working directory is its copy.
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
"""The experiment's key in verl's `data` section, the only section passed to data sets."""


def pack_experiment(experiment: Experiment, *, run_id: str) -> dict[str, Any]:
    """Return the experiment as plain values for the key `ajet` in verl's `data` section.

    Secrets written in the YAML are replaced by names of environment variables, which this call sets.
    """
    return {
        "yaml": experiment.dump_resolved(hide=_store_secret),
        "name": experiment.name,
        "base": str(experiment.base),
        "root": str(experiment.root),
        "run_id": run_id,
    }


def _store_secret(secret: str) -> str:
    """Store a secret in an environment variable, and return the YAML interpolation that reads the variable."""
    name = f"AJET_LITERAL_{hashlib.blake2b(secret.encode(), digest_size=8).hexdigest()}"
    os.environ[name] = secret
    return f"${{oc.env:{name}}}"


def restore_experiment(about: Any) -> Experiment:
    """Return the experiment packed by `pack_experiment`.

    Args:
        about: the value of `data.ajet` in verl's config: resolved YAML text, name and folders.
    """
    return compose_experiment(about["yaml"], about["name"], about["base"], about["root"])


@lru_cache(maxsize=1)
def compose_experiment(yaml: str, name: str, base: str, root: str) -> Experiment:
    """Build the experiment from its resolved YAML text, once per process.

    Also loads the `.env` in the YAML's folder and adds the folder to `sys.path`, for the user's modules.

    Args:
        name: file name of the YAML without its suffix.
        base: folder of the YAML file on the driver's machine. A node without it uses its working directory, a copy.
        root: the folder of all runs on the driver's machine.
    """
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
