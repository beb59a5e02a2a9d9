"""Folders that untrusted code filled are removed, whatever their depth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ajet.record import held_folder
from ajet.record.held_folder import HeldFolder
from ajet.record.remove_folder import remove_folder
from ajet_command.running import EpisodeFolder
from ajet_environments.deployment.workdirs import Workdirs


def _nest_folders(top: Path, depth: int, mode: int = 0o755) -> None:
    parent = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=parent)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=parent))
        child = os.open("d", os.O_RDONLY, dir_fd=parent)
        os.fchmod(parent, mode)
        os.close(parent)
        parent = child
    os.close(parent)


@pytest.mark.parametrize("mode", [0o755, 0o000])
def test_held_folder_removes_folder_nested_over_recursion_limit(tmp_path: Path, mode: int) -> None:
    held = HeldFolder("deep-", str(tmp_path))
    top = held.path / "box"
    top.mkdir()
    _nest_folders(top, 1200, mode)
    held.remove()
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_command_agents_nested_folder_is_removed(tmp_path: Path) -> None:
    folder = EpisodeFolder(str(tmp_path), "nested")
    folder.fill(None, {"a/b.txt": "x"}, {})
    _nest_folders(folder.work, 1200, 0o000)
    folder.remove()
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_tool_servers_nested_folder_is_removed() -> None:
    workdirs = Workdirs()
    folder, _ = workdirs.prepare_folder("episode")
    _nest_folders(folder, 1200, 0o000)
    workdirs.remove("episode")
    assert not folder.exists() and folder.parent.exists()
    workdirs.close()
    assert not folder.parent.exists()


@pytest.mark.slow
def test_nested_leftovers_do_not_stop_next_maker(tmp_path: Path) -> None:
    left = tmp_path / "kind-left"
    left.mkdir()
    (left / held_folder.LOCK).touch()
    _nest_folders(left, 1200)
    HeldFolder("kind-", str(tmp_path)).remove()
    assert not any(tmp_path.iterdir())


def test_removal_follows_no_links(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (outside / "file").write_text("stays")
    (top / "a" / "b" / "c").mkdir(parents=True)
    for place in (top, top / "a", top / "a" / "b"):
        (place / "link").symlink_to(outside)
    (top / ".removed-1").mkdir()
    (top / ".removed-1" / "full").touch()
    (top / ".removed-2").touch()
    (top / ".removed-3").symlink_to(outside)
    remove_folder(top)
    assert not top.exists() and (outside / "file").read_text() == "stays"
    (tmp_path / "link").symlink_to(outside)
    remove_folder(tmp_path / "link")
    assert (outside / "file").exists()
