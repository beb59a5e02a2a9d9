"""`ajet init DIR`."""

from __future__ import annotations

from pathlib import Path


def init(directory: Path) -> None:
    """x"""
