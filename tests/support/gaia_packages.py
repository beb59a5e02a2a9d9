"""The packages of the tool servers that come with ajet, without a download."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet_environments.venvs import READY
from ajet_gaia.deployment import packages_folder
from ajet_gaia.environments import _python_folder


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environments of the servers' packages, which here are this one's, in a cache that has the models of the usual
    one."""
    cache, models = tmp_path / "cache", find_cache_root() / "models"
    monkeypatch.setenv("AJET_CACHE", str(cache))
    made = _python_folder("base", packages_folder())
    (made / "bin").mkdir(parents=True)
    program = made / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    (made / READY).touch()
    if models.is_dir():
        (cache / "models").symlink_to(models)
    return cache
