"""`make setup`: packages that lie aside are fetched together, or again; what tests share is on the path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup_venv.py"


@pytest.fixture
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_venv", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_was_fetched_by_half_is_fetched_again(setup, tmp_path, monkeypatch):
    asked: list[list[str]] = []
    monkeypatch.setattr(setup, "run", lambda command, environment=None: asked.append([*command]) or 1)
    pip, folder = SimpleNamespace(environment={}), tmp_path / "aside"
    for name in ("trinity_rft-0.6.0", "psycopg2_binary-2.9.13"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    both = ["trinity-rft==0.6.0", "psycopg2-binary==2.9.13"]
    assert setup.fetch(both[0], folder, ["uv"], pip, *both[1:]) == 0 and not asked
    assert setup.fetch(both[0], folder, ["uv"], pip, *both[1:], "fire==0.7.1") == 1, "the index does not answer"
    assert [[name for name in command if "==" in name] for command in asked] == [[*both, "fire==0.7.1"]] * 2
    assert not folder.exists(), "what is there by half would be taken for the whole"


def test_what_tests_share_is_put_on_the_path_by_a_new_file(setup, tmp_path):
    site, elsewhere = tmp_path / "lib" / "python3.11" / "site-packages", tmp_path / "elsewhere.pth"
    site.mkdir(parents=True)
    elsewhere.write_text("another tree")
    (site / "ajet_testing.pth").hardlink_to(elsewhere)
    setup.link_test_support(tmp_path)
    (folder,) = (site / "ajet_testing.pth").read_text().splitlines()
    assert (Path(folder) / "ajet_testing" / "__init__.py").is_file()
    assert elsewhere.read_text() == "another tree" and [path.name for path in site.iterdir()] == ["ajet_testing.pth"]
