"""Where what ships with ajet lies: beside the package in a checkout, in `ajet_files` in a wheel."""

from __future__ import annotations

from pathlib import Path

import ajet

_ROOT = Path(ajet.__file__).resolve().parents[1]
FILES = "ajet_files"
"""Folder of a wheel that holds what lies beside the package in a checkout."""


def default_config() -> Path:
    """The folder of the installed defaults."""
    return find_shipped("default_config")


def preset_file(name: str) -> Path:
    """Settings that `ajet.trainer_common.algorithm.preset` names."""
    return default_config() / "presets" / f"{name}.yaml"


def shipped_tutorials() -> Path:
    """The folder of the tutorials."""
    return find_shipped("tutorial")


def find_shipped(name: str) -> Path:
    packed = _ROOT / FILES / name
    return packed if packed.is_dir() else _ROOT / name
