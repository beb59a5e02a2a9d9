"""The repository's own packages: the kernel, each plug-in below `plugins/`, and AWorld's names.

Invariant: the list is computed from the tree, so that checks see a new plug-in without an edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

KERNEL = "ajet"
AWORLD_NAMES = ("train", "env")
PLUGINS = "plugins"


def find_packages(root: Path) -> dict[str, Path]:
    """Return the folder of each package by its import name."""
    names = {name: root / name for name in (KERNEL, *AWORLD_NAMES)}
    return {name: folder for name, folder in (names | find_plugins(root)).items() if folder.is_dir()}


def find_plugins(root: Path) -> dict[str, Path]:
    """Return the folder of each plug-in by its import name."""
    folders = (folder for folder in sorted((root / PLUGINS).glob("*")) if any(folder.glob("*.py")))
    return {folder.name: folder for folder in folders}


def list_sources(package: Path) -> Iterator[Path]:
    """Yield the Python files of a package without those of its tests."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        if parts[0] != "tests" and "__pycache__" not in parts:
            yield path
