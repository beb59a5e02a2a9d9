"""environment.json: what a run ran on, so that it can be repeated. No secrets, no environment variables but a few
that change numbers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ajet.record.processors import usable_cpus

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "PYTHONHASHSEED")


def environment(*folders: Path) -> dict[str, Any]:
    """Versions, machine, and the git commit of each of `folders` that lies in a repository."""
    return {
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu": {"model": _cpu_model(), "logical": os.cpu_count(), "usable": usable_cpus()},
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "git": {str(folder): commit for folder in folders if (commit := git_commit(folder))},
        "packages": _packages(),
    }


def git_commit(folder: Path) -> str | None:
    """The commit of the repository around `folder`, "+changes" appended when the tree differs; None outside of one."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _packages() -> dict[str, str]:
    found = dict(filter(None, (_name_and_version(package) for package in metadata.distributions())))
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _name_and_version(package: metadata.Distribution) -> tuple[str, str] | None:
    """Name and version by the head of its metadata alone: to parse them all, descriptions included, takes longer than a
    debug run."""
    head = (package.read_text("METADATA") or package.read_text("PKG-INFO") or "").partition("\n\n")[0]
    name, version = (re.search(rf"^{field}: *(\S+)", head, re.MULTILINE) for field in ("Name", "Version"))
    return (name[1], version[1]) if name and version else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpus() -> list[str]:
    """Names as NVIDIA's driver lists them; asking torch would import it."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        names += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model")]
    return names
