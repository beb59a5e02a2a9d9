"""The name of a built image is the content of its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ajet.schema.errors import SandboxFailure
from ajet_containers.images import digest_folder, list_base_images


def test_the_digest_is_of_names_modes_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text("text")
    (folder / "link").symlink_to("sub/file")
    first = digest_folder(folder)
    shutil.copytree(folder, tmp_path / "two", symlinks=True)
    assert digest_folder(tmp_path / "two") == first != digest_folder(folder, "another base")
    (folder / "sub" / "file").chmod(0o755)
    assert digest_folder(folder) != first
    (folder / "sub" / "file").chmod(0o644)
    (folder / "link").unlink()
    (folder / "link").symlink_to("sub")
    assert digest_folder(folder) != first


def test_base_images_are_those_of_no_stage(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM --platform=linux/amd64 one:1 AS build\nRUN true\nfrom build\nFROM scratch\nFROM two\n")
    assert list_base_images(file) == ["one:1", "two"]
    file.write_text("ARG BASE=one\nFROM $BASE\n")
    with pytest.raises(SandboxFailure, match="BASE"):
        list_base_images(file)
