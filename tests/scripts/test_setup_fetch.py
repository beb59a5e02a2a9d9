"""`make setup`: packages that lie aside are fetched together, or again; what tests share is on the path."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from scripts import setup_venv


def test_what_was_fetched_by_half_is_fetched_again(tmp_path, monkeypatch):
    asked: list[list[str]] = []
    monkeypatch.setattr(setup_venv, "run", lambda command, environment=None: asked.append([*command]) or 1)
    pip, folder = SimpleNamespace(environment={}), tmp_path / "aside"
    for name in ("trinity_rft-0.6.0", "psycopg2_binary-2.9.13"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    both = ["trinity-rft==0.6.0", "psycopg2-binary==2.9.13"]
    assert setup_venv.fetch(folder, ["uv"], pip, *both) == 0 and not asked
    assert setup_venv.fetch(folder, ["uv"], pip, *both, "fire==0.7.1") == 1, "the index does not answer"
    assert [[name for name in command if "==" in name] for command in asked] == [[*both, "fire==0.7.1"]] * 2
    assert not folder.exists(), "what is there by half would be taken for the whole"


def test_what_tests_share_is_put_on_the_path_by_a_new_file(tmp_path):
    site, elsewhere = tmp_path / "lib" / "python3.11" / "site-packages", tmp_path / "elsewhere.pth"
    site.mkdir(parents=True)
    elsewhere.write_text("another tree")
    (site / "ajet_testing.pth").hardlink_to(elsewhere)
    setup_venv.link_test_support(tmp_path)
    (folder,) = (site / "ajet_testing.pth").read_text().splitlines()
    assert (Path(folder) / "ajet_testing" / "__init__.py").is_file()
    assert elsewhere.read_text() == "another tree" and [path.name for path in site.iterdir()] == ["ajet_testing.pth"]
