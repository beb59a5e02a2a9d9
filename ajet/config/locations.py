"""Locate the cache and the files shipped with ajet, next to the package in a checkout or inside a wheel."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package `ajet`."""
INSTALL_ROOT = PACKAGE.parent
"""The parent folder: a checkout's root, or site-packages."""


def find_default_config() -> Path:
    """Return the folder of the installed defaults."""
    return _find_shipped("default_config")


def find_preset(name: str) -> Path:
    """Return the file of a preset (`trainer_common.algorithm.preset`)."""
    return find_default_config() / "presets" / f"{name}.yaml"


def find_tutorials() -> Path:
    """Return the folder of the tutorials."""
    return _find_shipped("tutorial")


def _find_shipped(name: str) -> Path:
    inside = PACKAGE / name
    return inside if inside.is_dir() else INSTALL_ROOT / name


def find_cache_root() -> Path:
    """Return AJET_CACHE, else `ajet` in XDG_CACHE_HOME, else ~/.cache/ajet."""
    configured = os.environ.get("AJET_CACHE")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ajet"


def explain_unwritable_cache() -> str:
    """Return why the cache cannot be written, with effect and cure, or "" for a writable cache."""
    import tempfile

    root = find_cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return ""
    except OSError as problem:
        return (
            f"ajet cannot write to its cache folder {root} ({problem.strerror}): results are not cached for "
            "later runs, and ajet cannot download or convert models. Set AJET_CACHE to a folder that this user "
            "may write to"
        )
