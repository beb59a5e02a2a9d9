"""The base install on the oldest and the newest Python: the wheel in a fresh environment of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.environments import get_environment
from scripts.fresh_installs import build_wheel, find_interpreter, fresh_environment, install_by_pip, name_wheel
from tests.support.base_install import check_base_install, run

pytestmark = pytest.mark.extra_slow


@pytest.mark.parametrize("name", ["oldest-python", "newest-python"])
def test_the_base_install_works(name: str, tmp_path: Path) -> None:
    """Without the packages that extras bring, test_base_install.py fails for the same defects on one Python."""
    version = get_environment(name).python
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"NOT RUN: there is no Python {version} on this machine")
    with fresh_environment(interpreter) as python:
        install_by_pip(python, name_wheel(build_wheel(tmp_path / "dist")))
        ajet, folder = [str(python.with_name("ajet"))], tmp_path / "agents"
        folder.mkdir()
        check_base_install(ajet, folder)
        without_verl = run(ajet, folder, "agent/tool.yaml", "--backbone", "verl", code=2).stderr
        bound = f"verl 0.9.1 needs Python below 3.13, and this is Python {version}"
        assert (bound in without_verl) == (version == "3.13") and "needs the package verl" in without_verl
