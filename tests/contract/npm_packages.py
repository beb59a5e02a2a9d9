"""Packages from npm for tests, by pinned version, in the environment's own folder of what tests have fetched.

Invariant: a test fetches nothing: `make setup` does (`python -m tests.contract.npm_packages`; `make test-slow` adds
those of its own with `--slow`, and the harnesses, which have 3.5 GB). Where npm is absent or could not reach its
registry, the test is skipped with that as its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet.engine.model_cache import open_entry
from ajet.schema.errors import UserError
from ajet_harness.install import install_harness
from ajet_harness.presets import list_harnesses

NODE_CLIENT = "openai@7.55.0"
GEMINI_CLI = "@google/gemini-cli@0.61.0"
MCP_EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"


def folder_of(requirement: str) -> str:
    """The name of its entry in the cache."""
    return f"npm/{requirement.lstrip('@').replace('/', '_')}"


def npm_package(requirement: str) -> Path:
    """A folder whose node_modules holds `name@version` and what it needs."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")
    folder = find_cache_root() / folder_of(requirement)
    if not folder.is_dir():
        pytest.skip(f"{requirement} was not fetched: `make setup` does, where npm reaches its registry")
    return folder


def fetch(requirement: str) -> None:
    """Into the cache, unless it is there."""

    def install(folder: Path) -> None:
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", requirement]
        subprocess.run(command, check=True, timeout=300, cwd=folder, stdout=subprocess.DEVNULL)

    open_entry(folder_of(requirement), install)


def main(arguments: list[str]) -> int:
    """What could not be fetched is said; its tests are skipped then."""
    os.environ.setdefault("AJET_CACHE", str(Path(sys.prefix, "share", "ajet")))
    for requirement in [NODE_CLIENT, *([GEMINI_CLI, MCP_EVERYTHING] if "--slow" in arguments else [])]:
        try:
            fetch(requirement)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{requirement} could not be fetched, its tests are skipped: {error}", file=sys.stderr)
    for name in list_harnesses() if "--slow" in arguments else ():
        try:
            install_harness(name)
        except UserError as error:
            print(f"the tests of the harness {name} are skipped: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
