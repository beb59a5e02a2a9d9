"""Fixtures of the container tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_containers.tests.harbor_package import install_harbor
from tests.support.sandbox_fixtures import require


@pytest.fixture(scope="session")
def harbor() -> Path:
    """Harbor's command."""
    require("podman")
    return install_harbor()
