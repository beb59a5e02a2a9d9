"""Requirements of packages against what is installed. Nothing is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check_requirements(requirements: Sequence[Requirement]) -> tuple[list[str], list[str]]:
    """(what is wrong, what is there), each a few words."""
    wrong, have = [], []
    for each in requirements:
        name, specifier, version = each.name, each.specifier, find_installed_version(each.name)
        if not version:
            wrong.append(f"{name} is not installed")
            continue
        if specifier.contains(version, prereleases=True):
            have.append(f"{name} {version}")
        else:
            wrong.append(f"{name} {version} is installed where {specifier} is asked for")
    return wrong, have


def find_installed_version(name: str) -> str:
    """The installed version; "" without one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def has_nvidia() -> bool:
    """Whether an NVIDIA driver is at work."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
