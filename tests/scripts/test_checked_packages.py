"""Checks see each package of the repository: a plug-in that is added is seen without an edit of any check."""

from __future__ import annotations

import glob
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ajet_testing.packages import find_packages, list_sources

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("ajet_toy", "ajet_other")
FOLDERS = {name: f"plugins/{name}" for name in PLUGINS} | {name: name for name in ("ajet", "train", "env")}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a repository with a kernel, two plug-ins with tests, and AWorld's names."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("README.md", "LICENSE"):
        (tmp_path / name).touch()
    for folder in FOLDERS.values():
        write(tmp_path / folder / "__init__.py", "")
    for name in PLUGINS:
        write(tmp_path / "plugins" / name / "plugin.py", "")
        write(tmp_path / "plugins" / name / "tests" / "__init__.py", "")
        write(tmp_path / "plugins" / name / "tests" / "test_it.py", "import ajet_toy, ajet_other, train\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run_tool(tool: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment."""
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def check_imports(tree: Path) -> set[str]:
    """Return the forbidden imports that import-linter finds in this tree by the contract of this repository."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (each for each in settings["contracts"] if each["type"] == "plugins")
    lines = [f"{key} = {json.dumps(settings[key])}" for key in ("root_packages", "contract_types")]
    lines += ["include_external_packages = true", "[[tool.importlinter.contracts]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in contract.items()]
    write(tree / "rules.toml", "\n".join(["[tool.importlinter]", *lines]))
    done = run_tool("lint-imports", "--no-cache", "--no-logo", "--config", "rules.toml", cwd=tree)
    found = {line.split(" (l.")[0] for line in done.stdout.splitlines() if " -> " in line}
    assert done.returncode == bool(found), done.stdout + done.stderr
    return found


def test_each_package_is_listed_without_its_tests(tree: Path) -> None:
    assert {name: folder.relative_to(tree).as_posix() for name, folder in find_packages(tree).items()} == FOLDERS
    assert [path.name for path in list_sources(tree / "plugins" / "ajet_toy")] == ["__init__.py", "plugin.py"]
    assert {"ajet", "train", "env"} <= find_packages(ROOT).keys()


@pytest.mark.slow
def test_forbidden_imports_between_packages_are_found(tree: Path) -> None:
    write(tree / "plugins" / "ajet_toy" / "code.py", "def load():\n    from ajet.x import y\n")
    write(tree / "plugins" / "ajet_ray" / "__init__.py", "")
    write(tree / "plugins" / "ajet_verl" / "__init__.py", "import ajet_ray\n")
    write(tree / "ajet" / "x.py", "y = 1\n")
    assert check_imports(tree) == set()
    write(tree / "ajet" / "x.py", "def f():\n    from ajet_toy import plugin\nimport train\n")
    write(tree / "plugins" / "ajet_toy" / "code.py", "from ajet_other import plugin\n")
    write(tree / "plugins" / "ajet_ray" / "back.py", "import ajet_verl\n")
    write(tree / "env" / "names.py", "import ajet_toy\n")
    assert check_imports(tree) == {
        "ajet.x -> ajet_toy", "ajet.x -> train", "ajet_toy.code -> ajet_other.plugin", "ajet_ray.back -> ajet_verl",
        "env.names -> ajet_toy",
    }  # fmt: skip


def test_ruff_reads_each_package(tree: Path) -> None:
    for folder in (*FOLDERS.values(), "plugins/ajet_toy/tests"):
        write(tree / folder / "planted.py", "import os\n")
    listed = json.loads(run_tool("ruff", "check", "--no-cache", "--output-format=json", ".", cwd=tree).stdout)
    planted = [Path(each["filename"]) for each in listed if each["code"] == "F401"]
    found = {path.parent.relative_to(tree).as_posix() for path in planted if path.name == "planted.py"}
    assert found == {*FOLDERS.values(), "plugins/ajet_toy/tests"}


def test_mypy_reads_each_package(tree: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    found = {path.rstrip("/") for each in settings["files"] for path in glob.glob(each, root_dir=tree, recursive=True)}
    assert found == set(FOLDERS.values())
    here = {path for each in settings["files"] for path in glob.glob(each, root_dir=ROOT, recursive=True)}
    assert "tests/support/ajet_testing/" in here


def test_the_wheel_takes_each_plug_in_without_its_tests(tree: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    write(tree / "tests" / "support" / "ajet_testing" / "__init__.py", "")
    for folder in ("default_config", "tutorial", "deploy"):
        write(tree / folder / "file.yaml", "")
    files = {file.distribution_path for file in WheelBuilder(str(tree)).recurse_included_files()}
    assert {f"{name}/{file}" for name in PLUGINS for file in ("__init__.py", "plugin.py")} <= files
    assert {"ajet/__init__.py", "ajet_aworld/names/train/__init__.py", "ajet_aworld/names/env/__init__.py"} <= files
    assert not [path for path in files if "tests" in path or "ajet_testing" in path]
