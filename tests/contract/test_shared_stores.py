"""What a store of many processes promises, run against each: who falls silent, who fails again and again, and who comes
too late harms nobody else."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.schema.errors import UserError
from ajet.store import (
    Address,
    Kept,
    LeaseLostError,
    Policy,
    SharedStore,
    StoreUnavailableError,
    TrainerFencedError,
    open_shared,
    require_store,
    sqlite_store,
    sqlite_tables,
)
from ajet.store.opening import credentials
from ajet.store.outage import limited_patience
from ajet_mongo import positions
from tests.support.record_fixtures import episode

Opens = Callable[..., SharedStore]


@pytest.fixture(params=["sqlite", "mongodb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock(kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets the store's clock go on by seconds."""
    if kind == "mongodb":
        monkeypatch.setattr(positions, "EXPIRES_EVERY", 0.0)
        return request.getfixturevalue("mongod").later  # type: ignore[no-any-return]
    now = [1_000_000.0]
    monkeypatch.setattr(sqlite_store.time, "time", lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


@pytest.fixture
def opens(kind: str, request: pytest.FixtureRequest, tmp_path: Path, clock: Callable[[float], None]) -> Opens:
    """One store, opened by one process after another."""
    address = f"sqlite:{tmp_path}/store.sqlite" if kind == "sqlite" else request.getfixturevalue("mongod").empty()

    def opened(**more: Any) -> SharedStore:
        return open_shared(address, **{"lease_seconds": 60.0, "max_attempts": 3} | more)

    return opened


def test_who_says_that_it_lives_keeps_its_positions(opens: Opens, clock: Callable[[float], None]) -> None:
    one, two = opens(), opens()
    one.join("sampler", "one")
    leases = one.lease(2)
    for _ in range(3):
        clock(50)
        one.renew(leases)
    assert [lease.order for lease in two.lease(1)] == [2]
    (member,) = one.members()
    assert (member.name, member.leases) == ("one", 2)
    assert member.joined - member.age > 149, "it said so last as long after it joined as three times went by"
    clock(61)
    two.renew(one.lease(1))
    with pytest.raises(LeaseLostError, match=r"\[0, 1\]"):
        one.renew(leases)
    assert [lease.order for lease in two.lease(3)] == [1, 2, 3], "0 was taken, by whom all have ended"


def test_what_fails_again_and_again_lies_with_the_dead_letters(opens: Opens, clock: Callable[[float], None]) -> None:
    store = opens(rolls=True)
    sampler = opens()
    (first,) = sampler.lease(1)
    sampler.put(first, Kept(episode("a")))
    sampler.fail(first, "the tool's server is down")
    (second,) = sampler.lease(1)
    assert second.order == 0 and [kept.episode.uuid for kept in second.attempts] == ["a"]
    clock(61)
    (third,) = sampler.lease(1)
    sampler.give_back([third])
    (third,) = sampler.lease(1)
    assert third.order == 0, "handing back is no attempt"
    sampler.fail(third, "again")
    assert [lease.order for lease in sampler.lease(2)] == [1, 2] and store.begun() == [1, 2]
    (letter,) = opens().dead()
    assert (letter.order, letter.ends) == (0, 1)
    assert [reason.partition(":")[0] for reason in letter.reasons] == [
        "the tool's server is down", "its lease ended", "again"
    ]  # fmt: skip
    assert store.depths().dead == 1 and store.depths().leased == 2
    with pytest.raises(LeaseLostError):
        sampler.put(third, Kept(episode("b")))
    store.revive(0)
    with pytest.raises(LeaseLostError):
        store.revive(0)
    assert [lease.order for lease in sampler.lease(1)] == [0] and store.dead() == []


def test_who_puts_again_too_late_takes_nothing_away(opens: Opens, clock: Callable[[float], None]) -> None:
    one, two = opens(), opens(rolls=True)
    (lease,) = one.lease(1)
    one.put(lease, Kept(episode("a")))
    clock(61)
    (taken,) = two.lease(1)
    with pytest.raises(LeaseLostError):
        one.put(lease, Kept(episode("a")), Kept(episode("b")))
    two.close(taken)
    assert [[kept.episode.uuid for kept in each.attempts] for each in two.closed()] == [["a"]]


def test_the_second_trainer_fences_off_the_first(opens: Opens) -> None:
    first = opens(rolls=True)
    (played,) = first.lease(1)
    (other,) = opens().lease(1)
    first.use([played.order], step=1)
    saved = first.commit()
    (held,) = first.lease(1)
    first.announce(Policy("run", 1, "/weights/1"))
    second = opens(rolls=True, at=saved)
    for late in (
        lambda: first.use([other.order], step=2),
        lambda: first.discard([other.order], 2, "stale"),
        lambda: first.commit(),
        lambda: first.forget(1),
        lambda: first.lease(1),
        lambda: first.announce(Policy("run", 2, "/weights/2")),
    ):
        with pytest.raises(TrainerFencedError, match="number 2, .* number 1"):
            late()
    with pytest.raises(LeaseLostError):
        first.put(held, Kept(episode("late")))
    assert [lease.order for lease in second.lease(2)] == [held.order, 3], "what a sampler holds stays its"
    with pytest.raises(TrainerFencedError, match="did not open the store as a trainer"):
        opens().commit()
    found = second.announced()
    assert found is not None and (found.trainer, found.policy.step) == (1, 1)
    second.announce(Policy("run", 1, "/weights/1", told={"fresh": True}))
    found = opens().announced()
    assert found is not None and (found.trainer, found.policy.told) == (2, {"fresh": True})


def test_what_may_not_be_played_yet_is_not_given_out(opens: Opens) -> None:
    trainer, sampler = opens(rolls=True), opens()
    assert sampler.announced() is None
    trainer.announce(Policy("run", 0, "/weights/0", below=3))
    found = sampler.announced()
    assert found is not None
    assert [lease.order for lease in sampler.lease(2, below=found.policy.below)] == [0, 1]
    leases = sampler.lease(2, below=found.policy.below)
    assert [lease.order for lease in leases] == [2] and sampler.lease(1, below=3) == []
    sampler.give_back(leases)
    assert [lease.order for lease in sampler.lease(1, below=0)] == [2], "what was begun is begun"


def test_closed_groups_come_as_a_stream(opens: Opens) -> None:
    trainer, sampler = opens(rolls=True), opens()
    for lease in sampler.lease(4):
        sampler.put(lease, Kept(episode(f"e{lease.order}")))
        sampler.put(lease, Kept(episode(f"e{lease.order}")))
        sampler.close(lease)
    had = [lease.order for lease in trainer.closed(2)]
    more = trainer.closed(1, but=had)
    assert had == [0, 1] and [(lease.order, len(lease.attempts)) for lease in more] == [(2, 1)]
    trainer.use(had, step=1)
    depths = trainer.depths()
    assert (depths.closed, depths.over, depths.next) == (2, 2, 4)


def test_how_long_the_oldest_are_where_they_are(opens: Opens, clock: Callable[[float], None]) -> None:
    trainer, sampler = opens(rolls=True), opens()

    def ages() -> tuple[int | None, int | None]:
        found = trainer.depths()
        return tuple(None if age is None else round(age) for age in (found.oldest_lease, found.oldest_closed))  # type: ignore[return-value]

    assert ages() == (None, None)
    first, second = sampler.lease(2)
    clock(5)
    (third,) = sampler.lease(1)
    sampler.renew([first, second])
    assert ages() == (5, None), "a renewed lease is no younger"
    for lease in (first, second):
        sampler.put(lease, Kept(episode(f"e{lease.order}")))
    sampler.close(first)
    clock(5)
    sampler.close(second)
    assert ages() == (5, 5), "since the third was begun, and since the first was closed"
    trainer.use([0], step=1, again=[0])
    assert ages() == (5, 0), "what a step has used waits for none"
    sampler.give_back([third])
    assert ages() == (None, 0)


def test_what_may_not_be_used_at_a_checkpoint_is_played_anew(opens: Opens) -> None:
    sampler = opens()
    for lease in sampler.lease(2):
        sampler.put(lease, Kept(episode(f"e{lease.order}")))
        sampler.close(lease)
    trainer = opens(rolls=True, usable=lambda kept: kept[0].episode.uuid == "e1")
    assert [lease.order for lease in trainer.closed()] == [1]
    assert [(lease.order, lease.attempts) for lease in trainer.lease(1)] == [(0, ())]


def test_members_come_and_go(opens: Opens, clock: Callable[[float], None]) -> None:
    one, two = opens(), opens(rolls=True)
    one.join("sampler", "a", {"rate": 2.5})
    clock(5)
    two.join("trainer", "z")
    found = [(each.role, each.name, round(each.age), dict(each.details)) for each in two.members()]
    assert found == [("trainer", "z", 0, {}), ("sampler", "a", 5, {"rate": 2.5})]
    one.leave()
    assert [each.name for each in two.members()] == ["z"]


def test_a_clock_that_is_set_back_keeps_no_position_for_ever(opens: Opens, clock: Callable[[float], None]) -> None:
    store = opens()
    store.lease(1)
    clock(-3600)
    assert [lease.order for lease in opens().lease(1)] == [0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sqlite:a.sqlite", "sqlite:/base/a.sqlite"),
        ("/x/a.sqlite", "sqlite:/x/a.sqlite"),
        ("mongodb://h:1/db?tls=true", "mongodb://h:1/db"),
        ("mongodb://h1,h2", "mongodb://h1,h2/my_run_2"),
    ],
)
def test_where_a_store_is(text: str, shown: str) -> None:
    assert Address.of(text, base=Path("/base"), run="my run.2").shown == shown


def test_an_address_with_a_password_is_refused_and_never_shown() -> None:
    with pytest.raises(UserError) as refused:
        Address.of("mongodb://me:hunter2@h/db")
    assert "hunter2" not in str(refused.value) and "AJET_STORE_PASSWORD" in str(refused.value)
    for text in ("redis://h", "sqlite:", "mongodb:///db"):
        with pytest.raises(UserError):
            Address.of(text)
    assert credentials({"AJET_STORE_USER": "u", "AJET_STORE_PASSWORD": "p"}) == ("u", "p") and credentials({}) is None
    with pytest.raises(UserError, match="AJET_STORE_PASSWORD is not set"):
        credentials({"AJET_STORE_USER": "u"})


def test_what_a_store_cannot_do_now_is_a_sentence(opens: Opens, tmp_path: Path) -> None:
    """Whatever its database calls it: a file that is damaged or closed, a server that is gone or has no room."""
    store = opens(rolls=True)
    (lease,) = store.lease(1)
    if (path := tmp_path / "store.sqlite").exists():
        damaged = path.read_bytes()
        path.write_bytes(damaged[:100] + bytes(len(damaged) - 100))
        path.with_name("store.sqlite-wal").unlink()
        with pytest.raises(UserError):
            open_shared(f"sqlite:{path}")
    else:
        from pymongo.errors import OperationFailure, WTimeoutError

        for error in (OperationFailure("no room", 14031), WTimeoutError("too few members", 64)):
            with pytest.raises(StoreUnavailableError, match="cannot write"), limited_patience(0.1):
                store.link.run_durable(lambda base, error=error: (_ for _ in ()).throw(error))  # type: ignore[attr-defined]
    store.disconnect()
    with pytest.raises(UserError):
        store.put(lease, Kept(episode("a")))


def test_a_file_that_can_be_none_is_said_why(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database, " * 100)
    for name, why in (
        ("folder", "the path is a folder"),
        ("gone/s.db", f"the folder {tmp_path}/gone does not exist"),
        ("text", "not a"),
    ):
        with pytest.raises(UserError, match=why):
            require_store(Address(tmp_path / name))


def test_a_file_that_a_later_ajet_brings_up_under_a_process_is_a_sentence(tmp_path: Path) -> None:
    store = open_shared(f"sqlite:{tmp_path}/store.sqlite")
    (lease,) = store.lease(1)
    with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as base:
        base.execute("ALTER TABLE ends ADD COLUMN more TEXT NOT NULL DEFAULT ''")
        base.execute(f"PRAGMA user_version = {sqlite_tables.VERSION + 1}")
    with pytest.raises(UserError, match=f"version {sqlite_tables.VERSION + 1}: a later"):
        store.put(lease, Kept(episode("a")))


def test_a_file_that_two_processes_make_at_once_is_opened_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, waits = sqlite3.connect(tmp_path / "store.db", isolation_level=None), list[float]()
    other.execute("BEGIN IMMEDIATE")  # SQLite answers at once then, however long it may wait

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        other.close()

    monkeypatch.setattr(sqlite_tables, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    store = open_shared(f"sqlite:{tmp_path}/store.db")
    assert len(waits) == 1
    assert [lease.order for lease in store.lease(1)] == [0]
    store.disconnect()


def test_a_process_that_is_stopped_within_a_write_holds_others_up_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tables, "PATIENCE", 0.05)
    store = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True, unreachable_timeout=0.2)
    (lease,) = store.lease(1)
    stopped = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    stopped.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(UserError, match="locked"):
            store.put(lease, Kept(episode("a")))
    stopped.close()
    store.put(lease, Kept(episode("a")))
    store.close(lease)
    (closed,) = store.closed()
    assert [kept.episode.uuid for kept in closed.attempts] == ["a"]
    store.disconnect()
