"""The config that verl gets, checked against the model as far as its files are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.verl import ModelLimits, read_limits, verl_config

if TYPE_CHECKING:
    from ajet.config import Experiment


def verl_settings(experiment: Experiment) -> dict[str, Any]:
    """verl's whole config. Raises ConfigError for what verl would refuse, MissingExtra without verl."""
    folder = _folder_at_hand(experiment)
    return verl_config(experiment, model=read_limits(folder) if folder is not None else ModelLimits())


def _folder_at_hand(experiment: Experiment) -> Path | None:
    """Where the model's config.json lies, if that is on this machine already."""
    path = experiment.settled()["model"]["path"]
    if path is None:
        return None
    if path.startswith("embedded:"):
        from ajet.engine.embedded import shipped_folder

        return shipped_folder(path.removeprefix("embedded:"))
    if Path(path).is_absolute():
        return Path(path) if (Path(path) / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError:  # a path that does not exist
        return None
    return Path(cached).parent if isinstance(cached, str) else None
