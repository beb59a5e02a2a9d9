"""What a store cannot do now, and what is a mistake in ajet: the first may be asked again, the second is loud."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ajet.gateway import Refused
from ajet.record.files import CannotWriteError
from ajet.rollout.served.groups import call_store_or_refuse
from ajet.schema.errors import UserError
from ajet.store import (
    TRANSIENT_ERRORS,
    Address,
    Kept,
    RunStore,
    StoreUnavailableError,
    TrainerFencedError,
    open_reader,
    open_shared,
)
from ajet.store.contract import StoreDownError
from ajet.store.sqlite_tables import is_mistake
from tests.support.record_fixtures import episode

FULL = sqlite3.OperationalError("database or disk is full")
DAMAGED = sqlite3.DatabaseError("database disk image is malformed")


def test_what_may_be_asked_again_is_no_mistake_of_anybodys() -> None:
    for kind in (StoreUnavailableError, StoreDownError, TrainerFencedError, CannotWriteError, OSError):
        assert issubclass(kind, TRANSIENT_ERRORS)
    assert not issubclass(UserError, TRANSIENT_ERRORS)
    assert not any(map(is_mistake, (FULL, DAMAGED)))
    assert all(is_mistake(kind("x")) for kind in (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError))


@pytest.mark.parametrize("error", [FULL, DAMAGED], ids=["full", "damaged"])
def test_a_disk_or_a_file_is_the_stores_own_word(tmp_path: Path, error: Exception) -> None:
    store = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True)
    with pytest.raises(StoreUnavailableError, match=str(error)), store.open_transaction():  # type: ignore[attr-defined]
        raise error
    store.disconnect()
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.begun()


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO commits (number, name) VALUES (1, 'a'), (1, 'b')", "SELECT nothing FROM positions", "SELECT ?"],
)
def test_a_mistake_in_a_statement_stays_one(tmp_path: Path, statement: str) -> None:
    store = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True)
    with pytest.raises(sqlite3.Error), store.open_transaction() as base:  # type: ignore[attr-defined]
        base.execute(statement)
    assert store.begun() == [], "the transaction is over"
    store.disconnect()
    reading = open_reader(Address(tmp_path / "store.db"))
    with pytest.raises(sqlite3.Error), reading.bound_reads():  # type: ignore[attr-defined]
        reading.database.execute("SELECT nothing FROM positions")  # type: ignore[attr-defined]
    reading.close()


def test_a_client_is_told_to_come_again_only_where_that_may_help() -> None:
    def refused(problem: Exception) -> Any:
        raise problem

    for problem in (StoreUnavailableError("It is away."), OSError(28, "No space left")):
        with pytest.raises(Refused, match="cannot be reached now"):
            asyncio.run(call_store_or_refuse(refused, problem))
    for mistake in (UserError("A sentence about something else."), sqlite3.ProgrammingError("of ours")):
        with pytest.raises(type(mistake)):
            asyncio.run(call_store_or_refuse(refused, mistake))


def test_a_run_store_without_room_may_be_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path / "pending")
    (lease,) = store.lease(1)

    def full(*given: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CannotWriteError, match="The disk is full"):
        patch.setattr("ajet.record.episodes.append_lines", full)
        store.put(lease, Kept(episode("a")))
    store.put(lease, Kept(episode("a")))
