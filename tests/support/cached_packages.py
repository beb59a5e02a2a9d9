"""Packages for tests that exclude those of this environment: each set is an entry of ajet's cache.

Tests do not install them: `make test-slow` does. Where they are missing, the tests that need them are skipped with that
reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet.engine.model_cache import open_entry


def find_packages_folder(requirement: str) -> Path:
    """Return the folder of a requirement's entry, for this Python version."""
    return find_cache_root() / _name_entry(requirement)


def find_own_python(requirement: str) -> Path:
    """Return the interpreter of the environment in a requirement's entry, or skip the test."""
    python = locate_python(find_packages_folder(requirement))
    if not python.exists():
        pytest.skip(f"there is no environment with {requirement}: `make test-slow` makes it, where a registry answers")
    return python


def locate_python(folder: Path) -> Path:
    """Return the path of the interpreter of an entry's environment."""
    return folder / "venv" / "bin" / "python"


def install_packages(requirement: str, install: Callable[[Path], None]) -> None:
    """Fill the entry by `install(folder)` unless it exists; print an error of the installation."""
    os.environ.setdefault("AJET_CACHE", str(Path(sys.prefix, "share", "ajet")))
    try:
        open_entry(_name_entry(requirement), install)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{requirement} could not be installed, its tests are skipped: {error}", file=sys.stderr)


def _name_entry(requirement: str) -> str:
    return f"python/{requirement}-{sys.version_info.major}.{sys.version_info.minor}"
