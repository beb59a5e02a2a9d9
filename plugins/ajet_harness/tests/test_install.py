"""How the programs of a harness are installed, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ajet.schema.errors import UserError
from ajet_environments.venvs import READY
from ajet_harness.install import choose_node_folder, find_installed, install_harness, list_mounted_folders


def program(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Node.js in an empty cache: a program that prints its arguments, without npm."""
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    folder = choose_node_folder()
    program(folder / "bin" / "node", 'echo node "$@"')
    (folder / READY).touch()
    return folder


def test_a_failed_installation_says_why_and_leaves_nothing(node, tmp_path):
    program(node / "bin" / "npm", "echo npm error 404 no such package >&2", "exit 1")
    with pytest.raises(UserError, match="The harness pi cannot be installed") as refused:
        install_harness("pi")
    assert "404 no such package" in str(refused.value) and find_installed("pi") is None
    assert not list((tmp_path / "cache" / "harness").glob("pi-*"))


def test_packages_are_installed_once_without_their_dependencies_programs(node, tmp_path):
    make = "mkdir -p $7/node_modules/.bin; cd $7/node_modules/.bin; printf '#!/usr/bin/env node' > pi; touch acorn"
    program(node / "bin" / "npm", f"echo run >> {tmp_path}/runs", make)
    programs = install_harness("pi")
    assert programs == install_harness("pi") == find_installed("pi")
    assert (tmp_path / "runs").read_text() == "run\n"
    assert [each.name for each in programs.iterdir()] == ["pi"]
    printed = subprocess.run([programs / "pi", "-p", "two words"], capture_output=True, text=True).stdout
    assert printed == f"node {programs.parent}/node_modules/.bin/pi -p two words\n"
    assert list_mounted_folders("pi") == [programs.parent, node]


def test_the_systems_python_is_not_mounted(tmp_path, monkeypatch):
    monkeypatch.setenv("AJET_CACHE", str(tmp_path))
    monkeypatch.setattr("ajet_harness.install.make_venv", lambda target, *_, **__: link(target, tmp_path / "opt"))
    programs = install_harness("mini-swe-agent")
    assert list_mounted_folders("mini-swe-agent") == [programs.parent, tmp_path / "opt"]
    (programs.parent / "bin" / "python").unlink()
    link(programs.parent, Path("/usr"))
    with pytest.raises(UserError, match="runs on the system's Python"):
        list_mounted_folders("mini-swe-agent")


def link(target: Path, prefix: Path) -> str:
    (target / "bin").mkdir(exist_ok=True)
    (target / "bin" / "python").symlink_to(prefix / "bin" / "python-of-nobody")
    return ""
