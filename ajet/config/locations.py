"""Where what ships with ajet lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

import ajet

_PACKAGE = Path(ajet.__file__).resolve().parent


def default_config() -> Path:
    """The folder of the installed defaults."""
    return _shipped("default_config")


def preset_file(name: str) -> Path:
    """Settings that `ajet.trainer_common.algorithm.preset` names."""
    return default_config() / "presets" / f"{name}.yaml"


def shipped_tutorials() -> Path:
    """The folder of the tutorials."""
    return _shipped("tutorial")


def _shipped(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
