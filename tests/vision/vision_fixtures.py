"""A vision model of 0.6 million weights, and the environment in which its processor can be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tutorial" / "example_vision"
"""The tutorial, whose model and tasks these are."""
_FILES = Path(sys.prefix) / "share" / "torchvision"


def vision_environment() -> dict[str, str]:
    """Variables for processes that load the processor; skips where there is no torchvision at all."""
    path = [str(Path(__file__).parent)]
    if find_spec("torchvision") is None:
        if not _FILES.is_dir():
            pytest.skip("torchvision could not be fetched by `make setup`")
        path.append(str(_FILES))
    return {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}


def made_model(folder: Path) -> Path:
    """The model and its processor, which half knows four colours."""
    command = [sys.executable, str(FOLDER / "make_model.py"), str(folder)]
    done = subprocess.run(command, env={**os.environ, **vision_environment()}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder
