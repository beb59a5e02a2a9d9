"""Compare package requirements with the installed versions, without importing the packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check_requirements(requirements: Sequence[Requirement]) -> tuple[list[str], list[str]]:
    """Return texts on unmet requirements and texts on met ones, a few words about one package each."""
    unmet, have = [], []
    for requirement in requirements:
        name, specifier, version = requirement.name, requirement.specifier, find_installed_version(requirement.name)
        if not version:
            unmet.append(f"{name} is not installed")
            continue
        if specifier.contains(version, prereleases=True):
            have.append(f"{name} {version}")
        else:
            unmet.append(f"{name} {version} is installed, but {specifier} is required")
    return unmet, have


def find_installed_version(name: str) -> str:
    """Return the installed version of a package, or "" if the package is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def has_nvidia() -> bool:
    """True if an NVIDIA driver is loaded."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
