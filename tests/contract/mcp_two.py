"""An environment with the `mcp` package of the 2.x line, which cannot be in one with the 1.x that others need.

Invariant: a test makes nothing: `make test-slow` does (`python -m tests.contract.mcp_two`). Where it could not, the
tests that need it are skipped with that as their reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet.engine.model_cache import open_entry

REQUIREMENT = "mcp==2.3.0"


def name() -> str:
    """Of its entry in the cache."""
    return f"python/{REQUIREMENT}-{sys.version_info.major}.{sys.version_info.minor}"


def python_with_mcp_two() -> Path:
    """Its interpreter."""
    found = find_cache_root() / name() / "venv" / "bin" / "python"
    if not found.exists():
        pytest.skip(f"there is no environment with {REQUIREMENT}: `make test-slow` makes it, where a registry answers")
    return found


def installed() -> bool:
    """Whether this very process has that line: see `test_mcp_lines`."""
    try:
        return int(version("mcp").partition(".")[0]) >= 2
    except PackageNotFoundError:
        return False


def make() -> None:
    """Into the cache, unless it is there."""

    def install(folder: Path) -> None:
        uv, venv = [sys.executable, "-m", "uv"], folder / "venv"
        subprocess.run([*uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(venv)], check=True)
        command = [*uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), REQUIREMENT]
        subprocess.run(command, check=True, timeout=600)

    open_entry(name(), install)


if __name__ == "__main__":
    os.environ.setdefault("AJET_CACHE", str(Path(sys.prefix, "share", "ajet")))
    try:
        make()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{REQUIREMENT} could not be installed, its tests are skipped: {error}", file=sys.stderr)
