"""A store's file that another program changed: what can be left out is, everything else is one screen that says so."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from ajet.schema.errors import UserError
from ajet.store import (
    Address,
    Kept,
    Policy,
    SharedStore,
    StoreUnavailableError,
    open_reader,
    open_shared,
    sqlite_tables,
)
from ajet.store.opening import survey
from tests.support.record_fixtures import episode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a closed and a leased position, a policy and a member."""
    store = opened(tmp_path / "store.db")
    store.join("sampler", "one")
    lease, other = store.lease(2)
    for each in (lease, other):
        store.put(each, Kept(episode(f"of {each.order}")))
    store.close(lease)
    store.announce(Policy("r", 1, "/weights"))
    store.disconnect()
    return tmp_path / "store.db"


def opened(path: Path) -> SharedStore:
    return open_shared(f"sqlite:{path}", rolls=True, run="r")


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as base:
        for statement in statements:
            base.execute(statement)
        base.commit()


@pytest.mark.parametrize(
    "row",
    [
        "('junk', 'x', 1.0, 1.0, '{}')",
        "('sampler', 'x', 'yesterday', 1.0, '{}')",
        "('sampler', 'x', 1.0, 9e999, '{}')",
        "('sampler', 'x', 1.0, 1.0, 'no JSON')",
        "('sampler', 'x', 1.0, 1.0, '[1]')",
        "('sampler', x'00', 1.0, 1.0, x'00')",
    ],
)
def test_a_junk_member_is_left_out(path: Path, row: str) -> None:
    change(path, f"INSERT INTO members (role, name, joined, seen, told) VALUES {row}")
    store = opened(path)
    assert [each.name for each in store.members()] == ["one"]
    store.disconnect()
    assert any(each.state == "warning" for each in survey(f"sqlite:{path}"))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO positions SELECT 77, 'junk', 0, 1, 1.0, '', 0, 1.0, '[]', 1.0",
        "UPDATE positions SET since = 'long ago'",
        "UPDATE positions SET reasons = 'no JSON'",
        "UPDATE positions SET reasons = '{\"a\": 1}'",
        "UPDATE positions SET until = 'for ever', trainer = 0",
    ],
)
def test_a_junk_position_ends_nobody(path: Path, statement: str) -> None:
    change(path, statement)
    store = opened(path)
    assert store.depths().closed == 1 and [lease.order for lease in store.closed()] == [0]
    store.quarantine(0, "is of no use")
    assert store.dead()[0].reasons[-1] == "is of no use"
    store.disconnect()
    assert survey(f"sqlite:{path}")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE policy SET said = 'no JSON'",
        "UPDATE policy SET said = '{\"run\": 1}'",
        "UPDATE policy SET time = 'noon'",
        'UPDATE policy SET said = replace(said, \'"step": 1\', \'"step": "one"\')',
    ],
)
def test_a_junk_policy_is_one_screen(path: Path, statement: str) -> None:
    change(path, statement)
    store = opened(path)
    with pytest.raises(StoreUnavailableError) as damaged:
        store.announced()
    assert damaged.value.where == str(path) and "room" not in damaged.value.do
    store.disconnect()
    assert any(each.state == "problem" for each in survey(f"sqlite:{path}"))


@pytest.mark.parametrize(
    "statement", ["UPDATE counts SET value = 'many'", "DELETE FROM counts", "UPDATE counts SET value = 1.5"]
)
def test_a_junk_count_is_one_screen(path: Path, statement: str) -> None:
    store = opened(path)
    change(path, statement)
    with pytest.raises(StoreUnavailableError):
        store.depths()
    store.disconnect()
    with pytest.raises(UserError):
        opened(path)


def test_a_damaged_page_asks_for_no_room(path: Path) -> None:
    store = opened(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(range(256)) * ((len(whole) - 4096) // 256))
    path.with_name(f"{path.name}-wal").write_bytes(b"")
    with pytest.raises(StoreUnavailableError) as damaged:
        for _ in range(3):
            store.closed()
            store.depths()
            store.members()
    assert "room" not in f"{damaged.value.do} {damaged.value.expected}"
    assert "nothing" not in damaged.value.do


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER change AFTER INSERT ON ends BEGIN DELETE FROM positions; END",
        "DROP TABLE members",
    ],
)
def test_foreign_tables_are_refused(path: Path, statement: str) -> None:
    change(path, statement)
    with pytest.raises(UserError) as refused:
        opened(path)
    assert str(path) in str(refused.value)
    with pytest.raises(UserError):
        open_reader(Address(path))
    assert any(each.state == "problem" for each in survey(f"sqlite:{path}"))


def test_no_statement_runs_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_tables, "MOST_STEPS", 20_000_000)
    store = opened(path)
    change(
        path,
        "DROP TABLE members",
        "CREATE VIEW members AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT 'sampler' AS role, i AS name, 1 AS joined, 1 AS seen, '{}' AS told FROM n",
    )
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        store.members()
    assert time.monotonic() - began < 20
    assert store.depths().closed == 1, "the next one has its own bound"
    store.disconnect()
