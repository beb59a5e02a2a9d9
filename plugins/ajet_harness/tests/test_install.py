"""How the programs of a harness are installed, and what is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ajet.schema.errors import UserError
from ajet_harness.install import find_installed, install_harness


def program(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A PATH with nothing but what a test puts there, and an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_missing_or_old_node_is_refused(bare):
    with pytest.raises(UserError, match="needs Node.js, which is not installed") as refused:
        install_harness("pi")
    assert "nodejs.org" in refused.value.do
    program(bare / "node", "echo v18.19.0")
    with pytest.raises(UserError, match="needs npm"):
        install_harness("pi")
    program(bare / "npm")
    with pytest.raises(UserError, match=r"does not run with Node.js 18\.19") as refused:
        install_harness("pi")
    assert "20.6 or newer" in refused.value.expected


def test_a_failed_installation_says_why_and_leaves_nothing(bare, tmp_path):
    program(bare / "node", "echo v24.0.0")
    program(bare / "npm", "echo npm error 404 no such package >&2", "exit 1")
    with pytest.raises(UserError, match="The harness pi cannot be installed") as refused:
        install_harness("pi")
    assert "404 no such package" in refused.value.do and find_installed("pi") is None
    assert not list((tmp_path / "cache" / "harness").glob("pi-*"))


def test_packages_are_installed_once(bare, tmp_path):
    program(bare / "node", "echo v24.0.0")
    program(bare / "npm", f"echo run >> {tmp_path}/runs", "/bin/mkdir -p node_modules/.bin")
    assert install_harness("pi") == install_harness("pi") == find_installed("pi")
    assert (tmp_path / "runs").read_text() == "run\n"
