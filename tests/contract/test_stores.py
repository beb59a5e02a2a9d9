"""What every store promises, run against each: nothing is lost and nothing is used twice, whenever a process ends."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.schema.errors import UserError
from ajet.store import (
    Address,
    Kept,
    Lease,
    LeaseLostError,
    RunStore,
    Store,
    open_shared,
    sqlite_store,
)
from ajet.store import StoreOptions as StoreOpener
from ajet.store.digest import ALTERED
from ajet.store.sqlite_store import SqliteStore
from ajet_mongo.mongo_store import MongoStore
from ajet_mongo.schema import RECORD, TASK
from tests.support.record_fixtures import assert_equal, episode

State = Mapping[str, Any] | None


@dataclass
class Opener:
    """Opens one implementation in a folder, again and again; who opened it before was killed."""

    kind: str
    folder: Path
    address: str = ""
    """Of a store in MongoDB."""

    def __call__(self, at: State = None, **more: Any) -> Store:
        at = json.loads(json.dumps(at))
        self.folder.mkdir(exist_ok=True)
        if self.kind == "run folder":
            return RunStore(self.folder / "pending", ledger="own", at=at, **more)
        return open_shared(self.address or f"sqlite:{self.folder}/store.sqlite", at=at, rolls=True, **more)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1_000_000.0]
    monkeypatch.setattr(sqlite_store.time, "time", lambda: now[0])

    def hours(count: float) -> None:
        now[0] += 3600 * count

    return hours


KINDS = ["run folder", "sqlite", "mongodb"]


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return Opener(request.param, tmp_path, address_of(request.param, request))


def address_of(kind: str, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("mongod").empty() if kind == "mongodb" else ""


def orders(leases: list[Lease]) -> list[int]:
    return [lease.order for lease in leases]


def ends(leases: list[Lease]) -> dict[int, list[str]]:
    return {lease.order: [kept.episode.uuid for kept in lease.attempts] for lease in leases}


def closed(store: Store, lease: Lease, *names: str) -> None:
    """A group of episodes with these names."""
    for name in names:
        store.put(lease, Kept(episode(name)))
    store.close(lease)


def test_ends_that_are_put_together_are_kept_together(opener: Opener) -> None:
    store = opener()
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")), Kept(episode("b"), ended_by="client"))
    store.put(lease, Kept(episode("b")), Kept(episode("c")))
    (again,) = opener().lease(1)
    assert [(one.episode.uuid, one.ended_by) for one in again.attempts] == [("a", ""), ("b", "client"), ("c", "")]


def test_what_may_not_be_used_any_more_is_played_anew(tmp_path: Path) -> None:
    """By whoever opens the run's folder at a checkpoint: the files go, the positions come again."""
    store = RunStore(tmp_path, ledger="own")
    leases = store.lease(3)
    for lease, name in zip(leases, "abc", strict=True):
        closed(store, lease, name)
    again = RunStore(tmp_path, ledger="own", usable=lambda kept: kept[0].episode.uuid == "b")
    assert ends(again.closed()) == {1: ["b"]} and len({path.stem for path in tmp_path.iterdir()}) == 1
    assert ends(again.lease(3)) == {0: [], 2: [], 3: []}


def test_positions_come_in_order_and_begun_ones_first(opener: Opener) -> None:
    store = opener()
    first = store.lease(4)
    assert orders(first) == [0, 1, 2, 3]
    store.use([0, 2], step=1)
    store.give_back([first[3]])
    assert orders(store.lease(2)) == [3, 4] and store.begun() == [1, 3, 4]
    again = opener(store.commit())
    assert again.begun() == [1, 3, 4] and orders(again.lease(5)) == [1, 3, 4, 5, 6]


MOVES = st.lists(
    st.tuples(st.sampled_from(["use", "discard", "back", "leave", "commit", "crash"]), st.integers(1, 5)), max_size=25
)
EXAMPLES = {"run folder": 30, "sqlite": 10, "mongodb": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_no_position_is_lost_or_used_twice_over_interruptions(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=EXAMPLES[kind], deadline=None)
    @given(moves=MOVES)
    def play(moves: list[tuple[str, int]]) -> None:
        interrupted(Opener(kind, tmp_path_factory.mktemp("store"), address_of(kind, request)), moves)

    play()


def interrupted(opener: Opener, moves: list[tuple[str, int]]) -> None:
    """Each position is somewhere, once, after these moves."""
    store, saved = opener(), None
    over: list[int] = []
    committed: list[int] = []
    held: set[int] = set()
    for move, amount in moves:
        if move == "commit":
            saved, committed = store.commit(), list(over)
        elif move == "crash":
            store, over, held = opener(saved), list(committed), set()
        else:
            leases = store.lease(amount)
            assert not set(orders(leases)) & ({*over} | held)
            if move == "use":
                store.use(orders(leases), step=1)
            elif move == "discard":
                store.discard(orders(leases), step=1, reason="stale")
            elif move == "back":
                store.give_back(leases)
            else:
                held |= set(orders(leases))
            over += orders(leases) if move in ("use", "discard") else []
    store.use(held, step=2)
    over += held
    rest = orders(store.lease(len(store.begun()) + 3))
    assert Counter(over + rest) == Counter(range(len(over) + len(rest)))


def test_what_was_put_is_there_once_whoever_is_killed(opener: Opener) -> None:
    store = opener()
    lease, other = store.lease(2)
    whole = episode("a", metadata={"text": "ö"})
    store.put(lease, Kept(whole, ended_by="client"))
    store.put(lease, Kept(whole, ended_by="client"))
    store.put(lease, Kept(episode("b", seed=3)))
    again = opener()
    assert again.closed() == []
    (found,) = again.lease_kept()
    assert (found.order, [one.ended_by for one in found.attempts]) == (0, ["client", ""])
    assert_equal(found.attempts[0].episode, whole)
    again.put(found, Kept(whole))
    again.put(found, Kept(episode("c")))
    again.close(found)
    assert ends(opener().closed()) == {0: ["a", "b", "c"]}
    assert orders(opener().lease(1)) == [other.order], "and what nothing was put of is played"


def test_ends_of_a_position_come_with_its_next_lease(opener: Opener) -> None:
    store = opener()
    leases = store.lease(2)
    store.put(leases[0], Kept(episode("a")))
    store.give_back(leases)
    assert ends(store.lease(2)) == {0: ["a"], 1: []}


def test_what_is_no_unicode_is_kept(opener: Opener) -> None:
    """A file's name that the system gave, half of a character that a program cut."""
    odd = episode("odd", metadata={"name": "caf\udce9", "ü": "\ud83d"})
    store = opener()
    (lease,) = store.lease(1)
    store.put(lease, Kept(odd))
    store.give_back([lease])
    (again,) = store.lease(1)
    assert_equal(again.attempts[0].episode, odd)


def test_a_kill_on_either_side_of_the_checkpoint(opener: Opener) -> None:
    """The commit is made, and then the checkpoint that holds it gets its name, or does not."""
    store = opener()
    one, two = store.lease(2)
    closed(store, one, "a", "b")
    closed(store, two, "c")
    assert ends(store.closed()) == {0: ["a", "b"], 1: ["c"]}
    store.use([0], step=1)
    before = store.commit()
    store.discard([1], step=2, reason="stale")
    after = store.commit()
    assert ends(opener(before).closed()) == {1: ["c"]}
    assert opener(after).closed() == [] and orders(opener(after).lease(1)) == [2]


def used(leases: list[Lease]) -> dict[int, tuple[int, ...]]:
    return {lease.order: lease.used for lease in leases}


def test_a_group_may_be_used_by_several_steps_and_each_use_is_of_a_checkpoint(opener: Opener) -> None:
    store = opener()
    for lease, names in zip(store.lease(3), ("ab", "c", "d"), strict=True):
        closed(store, lease, *names)
    store.use([0, 1], step=1, again=[0])
    assert used(store.closed()) == {0: (1,), 2: ()} and store.begun() == [2]
    first = store.commit()
    store.use([0, 2], step=2, again=[0, 2])
    store.use([0], step=3, again=[0])
    second = store.commit()
    assert used(store.closed()) == {0: (1, 2, 3), 2: (2,)} and store.begun() == []
    store.use([0], step=4)
    third = store.commit()
    assert used(store.closed()) == {2: (2,)}
    again = opener(second)
    assert used(again.closed()) == {0: (1, 2, 3), 2: (2,)} and ends(again.closed()) == {0: ["a", "b"], 2: ["d"]}
    assert orders(again.lease(1)) == [3], "what stays closed is nobody's to play"
    assert used(opener(third).closed()) == {2: (2,)}
    assert used(opener(first).closed()) == {0: (1,), 2: ()}, "uses that the checkpoint does not know never were"
    again = opener(first)
    again.use([0], step=2, again=[0])
    again.discard([2], step=2, reason="stale")
    assert used(opener(again.commit()).closed()) == {0: (1, 2)}
    assert used(opener(second).closed()) == {0: (1, 2, 3), 2: (2,)}, "and those of another line are not of this one"


def test_no_step_uses_a_group_twice_and_none_stays_that_is_not_closed(opener: Opener) -> None:
    store = opener()
    leases = store.lease(3)
    closed(store, leases[0], "a")
    closed(store, leases[1], "b")
    store.use([0], step=5, again=[0])
    for attempt in (
        lambda: store.use([0], step=5),
        lambda: store.use([1, 0], step=5, again=[1, 0]),
        lambda: store.use([0], step=4),
        lambda: store.discard([0], step=5, reason="stale"),
        lambda: store.use([1, 2], step=6, again=[1, 2]),
    ):
        with pytest.raises(LeaseLostError):
            attempt()
    assert used(store.closed()) == {0: (5,), 1: ()}, "and then none is used"
    store.discard([0], step=6, reason="stale")
    store.use([1], step=6)
    assert opener(store.commit()).closed() == []


def test_what_is_used_again_is_kept_until_no_checkpoint_goes_back_to_it(opener: Opener) -> None:
    store = opener()
    for lease, name in zip(store.lease(2), "ab", strict=True):
        closed(store, lease, name)
    store.use([0], step=1, again=[0])
    store.use([1], step=1)
    states = [store.commit()]
    store.forget(1)
    store.use([0], step=2, again=[0])
    states.append(store.commit())
    store.use([0], step=3)
    states.append(store.commit())
    store.forget(2)
    assert ends(opener(states[1]).closed()) == {0: ["a"]} and used(opener(states[1]).closed()) == {0: (1, 2)}
    store = opener(states[2])
    store.forget(3)
    assert store.closed() == [] and orders(store.lease(1)) == [2]


def test_what_was_used_stays_even_where_it_could_not_be_used_for_the_first_time(opener: Opener) -> None:
    store = opener()
    for lease, name in zip(store.lease(2), "ab", strict=True):
        closed(store, lease, name)
    store.use([0], step=1, again=[0])
    again = opener(store.commit(), usable=lambda kept: False)
    assert ends(again.closed()) == {0: ["a"]} and orders(again.lease(2)) == [1, 2]


def test_a_checkpoint_that_was_never_made_used_nothing(opener: Opener) -> None:
    store = opener()
    closed(store, store.lease(1)[0], "a")
    store.use([0], step=1)
    store.commit()
    again = opener()
    assert ends(again.closed()) == {0: ["a"]}
    again.use([0], step=1)
    assert orders(again.lease(1)) == [1]


def test_what_was_used_before_it_closed_is_open_again_where_the_use_does_not_hold(opener: Opener) -> None:
    store = opener()
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")))
    store.use([0], step=1)
    again = opener()
    assert again.closed() == [] and ends(again.lease_kept()) == {0: ["a"]}


def test_where_the_newest_checkpoint_is_damaged_the_one_before_has_all_that_came_after(opener: Opener) -> None:
    store = opener()
    for step, name in enumerate(("a", "b", "c"), start=1):
        (lease,) = store.lease(1)
        closed(store, lease, name)
        store.use([lease.order], step)
    states = []
    store = opener()
    for lease, step in zip(store.closed(), (1, 2, 3), strict=True):
        store.use([lease.order], step)
        states.append(store.commit())
    store.forget(2)
    assert ends(opener(states[1]).closed()) == {2: ["c"]}
    last = opener(states[2])
    assert last.closed() == [] and orders(last.lease(1)) == [3]


def test_what_no_checkpoint_goes_back_to_is_kept_nowhere(opener: Opener) -> None:
    store = opener()
    for name in ("a", "b"):
        (lease,) = store.lease(1)
        closed(store, lease, name)
    store.use([0], step=1)
    store.use([1], step=2)
    store.commit()
    store.forget(1)
    if isinstance(store, RunStore):
        assert sorted(path.name for path in (opener.folder / "pending").iterdir()) == [
            "step-1.bin", "step-1.closed", "step-1.jsonl"
        ]  # fmt: skip
    elif isinstance(store, MongoStore):
        assert [each["traj_id"] for each in store.link.find(RECORD, {})] == ["b"]
        assert [each["_id"] for each in store.link.find(TASK, {"num_samples": {"$gte": 1}})] == [1]
    else:
        assert isinstance(store, SqliteStore)
        assert store.database.execute("SELECT uuid FROM ends").fetchall() == [("b",)]


def test_what_takes_the_place_of_what_is_kept_nowhere_is_not_taken_for_it(opener: Opener) -> None:
    """A file or a row may get the number of one that is gone, and that the checkpoint knows as used."""
    store = opener()
    closed(store, store.lease(1)[0], "a")
    store.use([0], step=1)
    saved = store.commit()
    store.forget(1)
    store = opener(saved)
    closed(store, store.lease(1)[0], "b")
    assert ends(opener(saved).closed()) == {1: ["b"]}


def test_a_lost_lease_is_refused(opener: Opener) -> None:
    store = opener()
    (old,) = store.lease(1)
    store.give_back([old])
    (new,) = store.lease(1)
    assert new.order == old.order and new.fence > old.fence
    for attempt in (
        lambda: store.put(old, Kept(episode("late"))),
        lambda: store.close(old),
        lambda: store.give_back([old]),
    ):
        with pytest.raises(LeaseLostError):
            attempt()
    store.use([new.order], step=1)
    for attempt in (
        lambda: store.use([new.order], step=2),
        lambda: store.discard([7], step=2, reason="stale"),
        lambda: store.put(new, Kept(episode("late"))),
    ):
        with pytest.raises(LeaseLostError):
            attempt()
    assert orders(store.lease(1)) == [1]


def test_tasks_that_are_brought_stand_outside_of_the_order(opener: Opener) -> None:
    store = opener()
    one, two, three = (store.bring() for _ in range(3))
    assert orders([one, two, three]) == [-1, -2, -3] and orders(store.lease(1)) == [0]
    store.put(one, Kept(episode("a"), alone=True))
    store.put(two, Kept(episode("b")))
    store.give_back([three])
    store.close(one)
    store.use([-1], step=1)
    again = opener(store.commit())
    assert ends(again.lease_kept()) == {-2: ["b"]} and orders([again.bring()]) == [-4]
    assert orders(again.lease(1)) == [0], "brought ones are nobody's to play"


def test_ends_beyond_what_the_checkpoint_knows_take_their_positions(opener: Opener) -> None:
    store = opener()
    saved = store.commit()
    leases = store.lease(5)
    closed(store, leases[3], "a")
    again = opener(saved)
    assert ends(again.closed()) == {3: ["a"]}
    assert orders(again.lease(5)) == [0, 1, 2, 4, 5]


def test_a_checkpoint_of_another_store_hides_nothing(opener: Opener, tmp_path: Path) -> None:
    other = replace(opener, folder=tmp_path / "other", address=opener.address and f"{opener.address}_other")
    foreign = other()
    if isinstance(foreign, RunStore):
        foreign = RunStore(other.folder / "pending", ledger="another")
    closed(foreign, foreign.lease(1)[0], "theirs")
    foreign.use([0], step=1)
    state = foreign.commit()
    store = opener()
    if not isinstance(store, RunStore):
        with pytest.raises(UserError, match="another store"):
            opener(state)
        return
    (lease,) = RunStore(opener.folder / "pending", ledger="own", at=state).lease(1)
    store = RunStore(opener.folder / "pending", ledger="own", at=state)
    (lease,) = store.lease(1)
    closed(store, lease, "ours")
    assert lease.order == 1 and ends(opener(state).closed()) == {1: ["ours"]}


def test_a_lease_whose_time_is_over_is_anothers(tmp_path: Path, clock: Callable[[float], None]) -> None:
    one, two = (SqliteStore(tmp_path / "store.sqlite", StoreOpener(lease_seconds=3600)) for _ in range(2))
    (slow,) = one.lease(1)
    clock(0.9)
    one.put(slow, Kept(episode("a")))
    clock(0.9)
    assert orders(two.lease(1)) == [1], "what it puts tells that it lives"
    clock(0.2)
    (again,) = two.lease(1)
    assert (again.order, [one.episode.uuid for one in again.attempts]) == (0, ["a"])
    with pytest.raises(LeaseLostError):
        one.put(slow, Kept(episode("late")))


LEASES = """
import sys
from pathlib import Path
from ajet.store.sqlite_store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(40):
    print(*(lease.order for lease in store.lease(3)), flush=True)
"""


@pytest.mark.slow
def test_two_processes_never_lease_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEASES, str(tmp_path / "store.sqlite")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        for process in (one, two):
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        took = [[int(order) for order in process.communicate()[0].split()] for process in (one, two)]
    assert sorted(took[0] + took[1]) == list(range(240)) and len(took[0]) == len(took[1]) == 120
    assert orders(SqliteStore(tmp_path / "store.sqlite").lease(1)) == [240]


@dataclass
class Database:
    """What waits in a store, by the database itself."""

    opener: Opener

    def change(self, what: str) -> None:
        """Of the first episode that waits: what it said, a byte of its arrays, whose position it is, or its digest."""
        if self.opener.kind == "run folder":
            self._change_files(what)
        elif self.opener.kind == "sqlite":
            change = {
                "words": "UPDATE ends SET line = replace(line, 'α', 'β') WHERE uuid = 'a'",
                "arrays": "UPDATE ends SET arrays = CAST(substr(arrays, 1, 4) || x'07' || substr(arrays, 6) AS BLOB) "
                "WHERE uuid = 'a'",
                "position": "UPDATE ends SET place = 1 - place",
                "no digest": "UPDATE ends SET seal = '' WHERE uuid = 'a'",
            }
            with contextlib.closing(sqlite3.connect(self.opener.folder / "store.sqlite")) as base:
                assert base.execute(change[what]).rowcount
                base.commit()
        else:
            self._change_documents(what)

    def _change_files(self, what: str) -> None:
        line, arrays = (self.opener.folder / "pending" / name for name in ("step-0.jsonl", "step-0.bin"))
        if what == "words":
            line.write_text(line.read_text().replace("α", "β"))
        elif what == "position":
            line.write_text(line.read_text().replace('"position": 0', '"position": 1'))
        elif what == "no digest":
            row = json.loads(line.read_text())
            assert row.pop("digest")
            line.write_text(json.dumps(row, ensure_ascii=False) + "\n")
        else:  # with the checksum that fits: no accident
            raw = bytearray(zlib.decompress(arrays.read_bytes()))
            raw[4] ^= 1
            packed = zlib.compress(bytes(raw), 6)
            row = json.loads(line.read_text())
            row["blob"] |= {"length": len(packed), "crc32": zlib.crc32(packed)}
            arrays.write_bytes(packed)
            line.write_text(json.dumps(row, ensure_ascii=False) + "\n")

    def _change_documents(self, what: str) -> None:
        from pymongo import MongoClient

        address = Address.of(self.opener.address)
        with MongoClient(address.uri) as client:
            base = client[address.database]
            (named,) = [each["record"] for each in base[TASK].find_one({"_id": 0})["ends"]]
            if what == "words":
                assert base[RECORD].update_one({"_id": named}, {"$set": {"traj.0.content": "β"}}).modified_count
            elif what == "no digest":
                assert base[RECORD].update_one({"_id": named}, {"$unset": {"digest": ""}}).modified_count
            elif what == "arrays":
                raw = bytearray(zlib.decompress(base[RECORD].find_one({"_id": named})["arrays"]))
                raw[4] ^= 1
                base[RECORD].update_one({"_id": named}, {"$set": {"arrays": zlib.compress(bytes(raw))}})
            else:
                one, other = (base[TASK].find_one({"_id": order})["ends"] for order in (0, 1))
                base[TASK].update_one({"_id": 0}, {"$set": {"ends": other}})
                base[TASK].update_one({"_id": 1}, {"$set": {"ends": one}})


@pytest.mark.parametrize("what", ["words", "arrays", "position", "no digest"])
def test_an_episode_that_was_changed_while_it_waited_is_named_and_given_to_nobody(opener: Opener, what: str) -> None:
    store = opener(run="own") if opener.kind != "run folder" else opener()
    for lease, name in zip(store.lease(3), "abc", strict=True):
        closed(store, lease, name)
    saved = store.commit()
    Database(opener).change(what)
    if opener.kind == "run folder":
        named = f"{ALTERED}: episode a of position {int(what == 'position')}: its digest"
        with pytest.raises(UserError, match=named) as told:
            opener(saved)
        assert "step-0.jsonl:1" in told.value.where
        for file in (opener.folder / "pending").glob("step-0.*"):
            file.unlink()
        assert orders(opener(saved).closed()) == [1, 2]
        return
    again = opener(saved, run="own")
    assert hasattr(again, "dead") and hasattr(again, "revive")
    whole = [2] if what == "position" else [1, 2]
    assert orders(again.closed()) == orders(again.closed()) == whole
    letters = {letter.order: letter.reasons for letter in again.dead()}
    assert sorted([*letters, *whole]) == [0, 1, 2] and all(len(reasons) == 1 for reasons in letters.values())
    (reason,) = [reasons[0] for reasons in letters.values() if f"{ALTERED}: episode a of position" in reasons[0]]
    assert "its digest does not match" in reason or (what, opener.kind) == ("position", "mongodb")
    assert (opener.address or "store.sqlite") in reason
    for order in letters:
        again.revive(order)
    assert ends(again.lease(len(letters))) == {order: [] for order in letters}, "played anew"


def test_what_json_says_otherwise_than_a_workflow_did_is_no_change(opener: Opener) -> None:
    said = {1: "a", "1": "b", None: 0, "null": -0.0, "odd": [float("nan"), 2**70, 1e300], "$ref": {"＄x.y": "\0"}}
    store = opener(run="own") if opener.kind != "run folder" else opener()
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a", metadata=said)))
    store.close(lease)
    again = opener(store.commit(), run="own") if opener.kind != "run folder" else opener(store.commit())
    ((kept,),) = (each.attempts for each in again.closed())
    assert kept.episode.metadata["odd"] == ["NaN", 2**70, 1e300]


@pytest.mark.parametrize("opener", ["sqlite", "mongodb"], indirect=True)
def test_what_a_sampler_finds_changed_as_it_goes_on_with_it_is_played_by_nobody(opener: Opener) -> None:
    opener.folder.mkdir(exist_ok=True)
    store = open_shared(opener.address or f"sqlite:{opener.folder}/store.sqlite")
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")))
    store.give_back([lease])
    Database(opener).change("words")
    assert orders(store.lease(2)) == [1, 2], "as many as were asked for"
    (letter,) = store.dead()
    assert letter.order == 0 and letter.reasons[0].startswith(ALTERED)


def test_a_line_that_lost_its_name_is_refused_by_number(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "pending")
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")))
    (file,) = (tmp_path / "pending").glob("*.jsonl")
    file.write_text(file.read_text().replace('"uuid"', '"uuie"'))
    with pytest.raises(UserError, match=ALTERED) as refused:
        RunStore(tmp_path / "pending")
    assert refused.value.where.endswith("step-0.jsonl:1")
