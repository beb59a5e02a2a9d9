"""The check of names: a place that is not listed fails, a mended one leaves the list, and nothing enters it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import naming

POOR = """
class Store:
    def _read(self, told): ...
"""
CLEAN = "class LeaseStore:\n    def _read_lease(self, message): ...\n"
PRIVATE_USE = "def test_it(store):\n    assert store._lease\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for folder in ("ajet/store", "plugins/ajet_x/tests", "tests/store", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ajet/store/lease.py").write_text(CLEAN)
    (tmp_path / "tests/store/test_lease_ends.py").write_text("")
    return tmp_path


def check(root: Path, *flags: str) -> int:
    return naming.main(["--root", str(root), *flags])


def test_clean_names_pass(repository: Path) -> None:
    assert check(repository) == 0


def test_each_rule_names_its_place(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "ajet/store/left.py").write_text(POOR)
    (repository / "plugins/ajet_x/right.py").write_text("class Store: ...\n")
    (repository / "tests/store/test_nothing.py").write_text(PRIVATE_USE)
    (repository / "plugins/ajet_x/tests/test_x_right.py").write_text(
        "def test_it(monkeypatch, store):\n    monkeypatch.setattr(store, '_poll', None)\n"
    )
    assert check(repository) == 1
    assert set(capsys.readouterr().out.splitlines()) == {
        "new: one-word-private ajet/store/left.py _read",
        "new: banned-word ajet/store/left.py told",
        "new: repeated-class ajet/store/left.py Store",
        "new: repeated-class plugins/ajet_x/right.py Store",
        "new: test-without-module tests/store/test_nothing.py -",
        "new: private-use tests/store/test_nothing.py _lease",
        "new: private-use plugins/ajet_x/tests/test_x_right.py _poll",
    }


def test_list_only_shrinks(repository: Path) -> None:
    known = repository / naming.KNOWN
    known.write_text(
        "banned-word ajet/store/left.py told\none-word-private ajet/store/left.py _read\nrepeated-class gone.py A\n"
    )
    (repository / "ajet/store/left.py").write_text(POOR)
    assert check(repository) == 1, "a mended place must leave the list"
    assert check(repository, "--accept") == 0
    left = known.read_text().splitlines()
    assert left == ["banned-word ajet/store/left.py told", "one-word-private ajet/store/left.py _read"]
    (repository / "ajet/store/more.py").write_text("def _put(): ...\n")
    assert check(repository, "--accept") == 1 and known.read_text().splitlines() == left
