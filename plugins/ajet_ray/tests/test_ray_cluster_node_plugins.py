"""The plug-ins of a cluster's nodes: what differs, and a node that lacks one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ajet
from ajet.config.plugins import hand_to_workers, list_versions
from ajet_ray.cluster.ray_cluster import describe_difference

LISTING = "import json; from ajet.config.plugins import list_versions; print(json.dumps(list_versions()))"


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str, str, str], Path]:
    """Install a package with a plug-in of this version; the folder that holds it."""

    def made(place: str, name: str, version: str) -> Path:
        info = tmp_path / place / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(f"[ajet.plugins]\n{name} = {name}.plugin:PLUGIN\n")
        package = tmp_path / place / name
        package.mkdir()
        (package / "__init__.py").touch()
        text = f"from ajet.config.plugin import Plugin\nPLUGIN = Plugin(name='{name}', about='a test')\n"
        (package / "plugin.py").write_text(text)
        return tmp_path / place

    return made


def list_on_node(folder: Path) -> dict[str, str]:
    """The versions that a process of another machine lists, whose packages are in a folder."""
    root = Path(ajet.__file__).parents[1]
    path = os.pathsep.join(map(str, (folder, root, root / "plugins")))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", LISTING], env=environment, capture_output=True, text=True, check=True)
    listed: dict[str, str] = json.loads(done.stdout)
    return listed


def test_nodes_with_other_plugins_are_told_apart(
    install: Callable[[str, str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install("driver", "gliders", "2.0")))
    same = install("same", "gliders", "2.0")
    install("same", "rockets", "1.0")
    older = install("older", "gliders", "1.5.post1")
    with hand_to_workers():
        own = list_versions()
        found = {name: list_on_node(folder) for name, folder in (("same", same), ("older", older))}
    assert own["gliders"] == "2.0" and own["ajet"] == own["ajet_ray"] == ajet.__version__
    assert describe_difference(own, found["same"]) == "", "what the driver did not list is loaded nowhere"
    told = describe_difference(own, found["older"])
    assert "gliders" in told and "1.5.post1" in told and "2.0" in told and "ajet" not in told


def test_every_difference_is_named() -> None:
    own, found = {"ajet": "1.0", "a": "1", "b": "1"}, {"ajet": "1.1", "b": "", "c": "3"}
    told = describe_difference(own, found)
    assert [part.split()[0] for part in told.split("; ")] == ["a", "ajet", "b", "c"]
    assert describe_difference(own, dict(reversed(own.items()))) == ""
