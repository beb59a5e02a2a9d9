"""`--dry-run`, `ajet plan` and `ajet config validate` say of the store what the start would, and make nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.store import Address, check_store, open_shared, require_store
from ajet.store.sqlite_tables import VERSION
from ajet_mongo import connection
from tests.commands.test_plan import YAML
from tests.support.ports import free_port

LOCAL = ["--conf", "x.yaml", "--backbone", "local"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "x.yaml").write_text(YAML)
    (tmp_path / "agent.py").write_text("async def agent(task, tuner):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    monkeypatch.setattr(connection.MongoConnection.__init__, "__kwdefaults__", {"patience": 0.2})
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        launcher.main([*arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), " ".join((told.out + told.err).split())


def foreign(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE bookmarks (url TEXT)")
        base.commit()
    return path


def of_version(version: int, path: Path) -> Path:
    open_shared(f"sqlite:{path}").disconnect()
    with closing(sqlite3.connect(path)) as base:
        base.execute(f"PRAGMA user_version = {version}")
    return path


def addresses(folder: Path) -> dict[str, tuple[str, str]]:
    """What cannot be used: its address, and what is said of it."""
    (folder / "text.sqlite").write_text("no database" * 100)
    (folder / "a folder").mkdir()
    return {
        "no folder": (f"sqlite:{folder}/none/store.sqlite", "does not exist"),
        "a folder": (f"sqlite:{folder}/a folder", "the path is a folder"),
        "no database": (f"sqlite:{folder}/text.sqlite", "file is not a database"),
        "another program's": (f"sqlite:{foreign(folder / 'b.sqlite')}", "another program (its tables: bookmarks)"),
        "a later ajet's": (f"sqlite:{of_version(VERSION + 1, folder / 'l.sqlite')}", f"version {VERSION + 1}"),
        "an earlier ajet's": (f"sqlite:{of_version(VERSION - 1, folder / 'e.sqlite')}", f"version {VERSION - 1}"),
        "a server that is down": (f"mongodb://127.0.0.1:{free_port()}/x", "server of the store does not answer"),
    }


def test_a_look_says_what_opening_says_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.MongoConnection.__init__, "__kwdefaults__", {"patience": 0.2})
    for address, why in addresses(tmp_path).values():
        before = {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
        refusals = []
        for look in (check_store, require_store):
            with pytest.raises(Exception, match=".") as refused:
                look(Address.of(address))
            refusals.append(str(refused.value))
        assert refusals[0] == refusals[1] and why in refusals[0].replace("\n", " ")
        assert {file: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_a_store_that_can_be_used_passes(tmp_path: Path) -> None:
    check_store(Address.of(f"sqlite:{tmp_path}/new.sqlite"))
    check_store(Address.of(f"sqlite:{tmp_path}/run/new.sqlite"), made=tmp_path / "run")
    assert list(tmp_path.iterdir()) == [], "nothing is made"
    open_shared(f"sqlite:{tmp_path}/new.sqlite").disconnect()
    check_store(Address.of(f"sqlite:{tmp_path}/new.sqlite"))


@pytest.mark.slow
def test_dry_run_plan_and_validate_look(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (address, why) in addresses(project).items():
        kind = "mongodb" if "server" in name else "sqlite"
        own = [f"store.type={kind}", f"store.uri='{address}'"]
        code, told = said(capsys, *LOCAL, "--dry-run", *own)
        assert code == 2 and why in told, told
        code, told = said(capsys, "config", "validate", *LOCAL, *own)
        if kind == "sqlite":
            assert code == 2 and why in told, told
        else:  # it asks no network
            assert code == 0 and f"the store at {address}" in told, told
    code, told = said(capsys, *LOCAL, "--dry-run", "--from-store", f"sqlite:{project}/b.sqlite")
    assert code == 2 and "another program" in told
    code, told = said(capsys, "plan", "--conf", "x.yaml", "store.type=sqlite", f"store.uri='sqlite:{project}/b.sqlite'")
    assert code == 2 and "another program" in told
    assert not (project / "launcher_record").exists()


def test_a_record_that_could_not_be_written_ends_a_dry_run_as_it_ends_the_start(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["--dry-run"], []):
        code, told = said(capsys, *LOCAL, "--exp-dir", "agent.py", *more)
        assert code == 2 and "the record of the run could not be written" in told.lower() and "--exp-dir" in told
