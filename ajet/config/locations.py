"""Locate the cache and the files shipped with ajet, next to the package in a checkout or inside a wheel."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package `ajet`."""
INSTALL_ROOT = PACKAGE.parent
"""The parent folder: a checkout's root, or site-packages."""


def find_default_config() -> Path:
    """Return the folder of the default settings that ship with ajet."""
    return _find_shipped("default_config")


def find_preset(name: str) -> Path:
    """Return the YAML file of a preset, which `trainer_common.algorithm.preset` names."""
    return find_default_config() / "presets" / f"{name}.yaml"


def find_tutorials() -> Path:
    """Return the folder of the tutorials that ship with ajet."""
    return _find_shipped("tutorial")


def _find_shipped(name: str) -> Path:
    """Return a shipped folder: inside the package in a wheel, beside the package in a checkout."""
    path_in_package = PACKAGE / name
    return path_in_package if path_in_package.is_dir() else INSTALL_ROOT / name


def find_cache_root() -> Path:
    """Return the cache folder: AJET_CACHE, else `ajet` in XDG_CACHE_HOME, else ~/.cache/ajet."""
    configured = os.environ.get("AJET_CACHE")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ajet"


def explain_unwritable_cache() -> str:
    """Return why the cache folder cannot be written, what this means and what to do, or "" if it can."""
    import tempfile

    root = find_cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return ""
    except OSError as error:
        return (
            f"ajet cannot write to its cache folder {root} ({error.strerror}): results are not cached for "
            "later runs, and ajet cannot download or convert models. Set AJET_CACHE to a folder that this user "
            "may write to"
        )
