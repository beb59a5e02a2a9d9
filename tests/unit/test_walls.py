"""What is shown behind walls: folders, and in them no file of keys that can be read, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.environment.sandbox.contract import Limits
from ajet.environment.sandbox.walls import Shown
from ajet.rollout.isolation.messages import Home
from ajet.rollout.isolation.sandbox import Box
from ajet.schema.endpoint import Endpoint


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "project"
    folder.mkdir()
    return folder


def with_files(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("KEY=1")
    return sorted(str(folder / name) for name in names)


def secrets_of(*folders: Path) -> list[str]:
    return list(Shown.of(folders).secrets)


def test_keys_are_empty_however_deep_they_lie(project: Path) -> None:
    keys = with_files(project, ".env", ".env.local", "backend/.env", "a/b/c/d/.envrc")
    with_files(project, "code.py", "env/x", "node_modules/x/.env", ".git/.env")
    assert secrets_of(project) == keys
    assert secrets_of(project, project / "backend") == keys, "shown twice, emptied once"


def test_keys_beside_an_environment_of_python_are_empty_too(project: Path) -> None:
    """As `python -m venv .` makes one; what was installed into it is not the person's."""
    keys = with_files(project, ".env", "src/.env", "venv/.env")
    with_files(project, "pyvenv.cfg", "venv/pyvenv.cfg", "lib/python3/site-packages/x/.env", "venv/lib/x/.env")
    assert secrets_of(project) == keys


def test_keys_are_empty_under_the_name_that_a_folder_is_shown_by(project: Path) -> None:
    with_files(project, "backend/.env")
    by = project.parent / "by another name"
    by.symlink_to(project)
    assert secrets_of(by) == [str(by / "backend" / ".env")]


def test_a_link_to_keys_is_as_empty_as_they_are(project: Path) -> None:
    with_files(project, "keys/production", "code.py")
    with_files(project.parent / "elsewhere", "production")
    (project / ".env").symlink_to("keys/production")
    (project / ".env.other").symlink_to(project.parent / "elsewhere" / "production")
    assert secrets_of(project) == [str(project / "keys" / "production")], "what is not shown cannot be read"


def test_keys_of_other_folders_that_a_workflow_imports_from_are_empty_too(project: Path) -> None:
    keys = with_files(project, ".env") + with_files(project.parent / "library", "deep/.env")
    home = Home("flow.py->Flow", project, (str(project.parent / "library"),), Endpoint("http://127.0.0.1:9/v1", "key"))
    shown = Box(home, "/nowhere", "http://127.0.0.1:9", Limits())._shown
    assert sorted(shown.secrets) == sorted(keys) and str(project.parent / "library") in shown.folders
