"""`make setup`: packages that lie aside are fetched together, or again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup_venv.py"


def test_what_was_fetched_by_half_is_fetched_again(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("setup_venv", SCRIPT)
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
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
