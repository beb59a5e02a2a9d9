"""An environment with the `mcp` package of the 2.x line, which cannot be in one with the 1.x that others need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.cached_packages import find_own_python, install_packages, locate_python

REQUIREMENT = "mcp==2.3.0"


def python_with_mcp_two() -> Path:
    """Return the interpreter of the environment, or skip the test."""
    return find_own_python(REQUIREMENT)


def _install(folder: Path) -> None:
    uv, venv = [sys.executable, "-m", "uv"], folder / "venv"
    subprocess.run([*uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(venv)], check=True)
    command = [*uv, "pip", "install", "--quiet", "--python", str(locate_python(folder)), REQUIREMENT]
    subprocess.run(command, check=True, timeout=600)


if __name__ == "__main__":
    install_packages(REQUIREMENT, _install)
