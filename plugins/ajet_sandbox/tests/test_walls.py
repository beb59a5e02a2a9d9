"""What code behind walls sees of a project, and what it cannot do there, as this user and as an ordinary one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet.rollout.isolation.messages import WorkerSetup
from ajet.schema.endpoint import Endpoint
from ajet.schema.sandbox import Limits
from ajet_sandbox.choose import open_sandbox
from ajet_sandbox.inside.kernel import read_landlock_version
from ajet_sandbox.inside.open_rule import LEAST_ABI
from ajet_sandbox.interpreter import find_system_interpreter
from ajet_sandbox.isolation import WorkerSandbox
from ajet_sandbox.tests.wall_attacks import ATTACKS
from ajet_sandbox.walls import ShownFolders
from tests.support.sandbox_fixtures import require, run_as_nobody


@pytest.fixture(params=["/tmp", "/var/tmp"])
def top(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that every user can reach. `/tmp` is one of those that are writable inside."""
    require("bubblewrap")
    folder = Path(tempfile.mkdtemp(dir=request.param))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def attack(name: str, top: Path, user: str) -> object:
    """What the attack got hold of."""
    if user == "this":
        return ATTACKS[name](top)
    if os.geteuid() != 0:
        pytest.skip("this user is an ordinary one")
    found: object = run_as_nobody("plugins/ajet_sandbox/tests/wall_attacks.py", name, top)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("user", ["this", "another"])
def test_locks_of_records_cannot_be_taken(top: Path, user: str) -> None:
    found = attack("locks", top, user)
    assert isinstance(found, list)
    assert [each for each in found if ".lock" in each or "-shm" in each] == []
    assert [each for each in found if each.startswith(("runs/", "launcher_record/"))] == []
    assert {"code.py flock", ".venv/lib/module.py flock", "run.json flock"} <= set(found), "the rest is shown"


@pytest.mark.slow
@pytest.mark.skipif(read_landlock_version() < LEAST_ABI, reason="no Landlock")
@pytest.mark.parametrize("user", ["this", "another"])
def test_keys_changed_after_start_are_not_read(top: Path, user: str) -> None:
    found = attack("late keys", top, user)
    assert isinstance(found, dict)
    assert {name: text for name, text in found.items() if "SECRET" in text} == {}
    assert not any("launcher_record" in name for name in found)
    assert found["code.py"] == found[".env.example"] == "shown"


def test_programs_read_write_rename_and_run(top: Path) -> None:
    assert attack("use", top, "this") == []


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
    return list(ShownFolders.of(folders).secrets)


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
    setup = WorkerSetup(
        "flow.py->Flow", project, (str(project.parent / "library"),), Endpoint("http://127.0.0.1:9/v1", "key")
    )
    shown = WorkerSandbox(setup, "/nowhere", "http://127.0.0.1:9", Limits()).find_shown()
    assert sorted(shown.secrets) == sorted(keys) and str(project.parent / "library") in shown.folders


def test_project_that_is_running_python_is_not_shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m venv .` makes one, of which only a folder is named."""
    with_files(project, ".env", "pyvenv.cfg", "bin/python", "lib/module.py", "servers/code.py")
    monkeypatch.setattr(sys, "prefix", str(project))
    monkeypatch.setattr(sys, "executable", str(project / "bin" / "python"))
    shown = [Path(each) for each in ShownFolders.of([project / "servers"]).folders]
    assert {project / name for name in ("pyvenv.cfg", "bin", "lib", "servers")} <= set(shown)
    assert not any((project / ".env").is_relative_to(each) for each in shown)


@pytest.mark.parametrize("mechanism", ["bubblewrap", "landlock"])
def test_project_that_is_sandboxs_python_is_not_shown(top: Path, mechanism: str) -> None:
    """As `conda create -p .` makes one."""
    require(mechanism)
    system = find_system_interpreter()
    if system is None:
        pytest.skip("no Python of the system's")
    for name in ("bin", "lib"):
        (top / name).symlink_to(Path(system.prefix, name))
    with_files(top, ".env", "launcher_record/run/.lock")
    box = open_sandbox(mechanism, Limits(wall=10), python=f"{top}/bin/{system.program}")
    try:
        found = box.python(OPENS.format(tops=[str(top), "/py"]))
        assert found.good and found.stdout == b"[]\n", found
    finally:
        box.close()


OPENS = """
found = []
for top in {tops}:
    for name in (".env", "launcher_record/run/.lock"):
        try:
            found.append(open(top + "/" + name).name)
        except OSError:
            pass
print(found)
"""
