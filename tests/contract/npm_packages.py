"""Packages from npm for tests: fetched once into ajet's cache folder, by pinned version.

Where npm is absent or cannot reach its registry, the test is skipped with that as its reason; any other failure of npm
is the test's.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from ajet.engine.model_cache import entry

_UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")


@cache
def npm_package(requirement: str) -> Path:
    """A folder whose node_modules holds `name@version` and what it needs."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")

    def install(folder: Path) -> None:
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", requirement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
        if any(code in done.stderr for code in _UNREACHABLE):
            pytest.skip(f"npm cannot reach its registry, to fetch {requirement}")
        assert done.returncode == 0, f"npm install {requirement}: {done.stderr}"

    return entry(f"npm/{requirement.lstrip('@').replace('/', '_')}", install)
