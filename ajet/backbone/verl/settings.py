"""The config that verl gets, checked against the model as far as its files are at hand."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.verl import ModelLimits, read_limits, verl_config

if TYPE_CHECKING:
    from ajet.config import Experiment


def verl_settings(experiment: Experiment) -> dict[str, Any]:
    """verl's whole config. Raises ConfigError for what verl would refuse, MissingExtra without verl."""
    folder = _folder_at_hand(experiment)
    model = read_limits(folder) if folder is not None else ModelLimits()
    return verl_config(experiment, model=model, gpu_bytes=_gpu_bytes())


def _gpu_bytes() -> int | None:
    """The memory of this machine's smallest GPU; None without one (the GPUs may be on other machines)."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        return min(int(line) for line in done.stdout.split()) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):  # no such command, no GPU, or one that does not tell
        return None


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
