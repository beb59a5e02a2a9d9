"""The command that comes next, as it can be pasted where this one was given.

Invariant: it names the same YAML, folder of records and overrides; only the backbone is another.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config.backbones import described
from ajet.config.experiment import DEFAULT_ROOT
from ajet.schema.commands import command

if TYPE_CHECKING:
    from ajet.config import Experiment


def command_for(experiment: Experiment, backbone: str) -> str:
    """`ajet --conf … --backbone BACKBONE …`; "" for an experiment that no file holds."""
    if not experiment.yaml_path.is_file():
        return ""
    words = ["--conf", _short(experiment.yaml_path), "--backbone", backbone]
    named = experiment.ajet.experiment_dir
    if experiment.root != Path(DEFAULT_ROOT if named == "auto" else named).expanduser().absolute():
        words += ["--exp-dir", _short(experiment.root)]
    if "spreads" in described(backbone).can:
        words.append("--with-ray-cluster" if os.environ.get("RAY_ADDRESS") else "--with-ray")
    kept = [each for each in experiment.overrides if _concerns(each.partition("=")[0].strip("+ "), backbone)]
    return command(*words, *kept)


def _concerns(key: str, backbone: str) -> bool:
    """Whether a key that was set has an effect on that backbone, or may have."""
    if key.removeprefix("ajet.").startswith("debug."):
        return "trains" not in described(backbone).can
    return key not in _BACKBONES


_BACKBONES = ("backbone", "ajet.backbone")


def _short(path: Path) -> str:
    """The path as one would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
