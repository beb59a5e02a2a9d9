"""Harbor's own package for tests, in an environment of its own, because it needs another Python than ajet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet.record.lock import alone

HARBOR = "harbor==0.26.0"
ENVIRONMENT = Path(__file__).with_name("harbor_environment.py")
"""Module with the environment class that lets Harbor use podman in place of docker."""


def find_later_pythons() -> Iterator[str]:
    """Yield Pythons of 3.12 or later, which Harbor needs."""
    names = [shutil.which(name) for name in ("python3.13", "python3.12")]
    for python in (*names, *map(str, Path(sys.base_prefix).parent.glob("3.1[23]*/bin/python"))):
        if python and subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0:
            yield python


def install_harbor() -> Path:
    """Return Harbor's command, installed once into the cache. Skips the test if that is impossible."""
    folder = find_cache_root() / HARBOR.replace("==", "-")
    with alone(folder.with_suffix(".lock"), f"installing {HARBOR}"):
        if not (folder / "bin" / "harbor").exists():
            python = next(find_later_pythons(), None)
            if python is None:
                pytest.skip("Harbor needs a Python of 3.12 or later")
            subprocess.run([python, "-m", "venv", str(folder)], check=True)
            install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", HARBOR]
            if (done := subprocess.run(install, capture_output=True, text=True)).returncode:
                shutil.rmtree(folder)
                pytest.skip(f"Harbor cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / "bin" / "harbor"
