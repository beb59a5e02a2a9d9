"""What only MongoDB has to show: its documents are the episode, a kill between any two operations loses nothing, an
answer that was lost is asked for again, and nobody reads a password anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from loguru import logger

from ajet.config import Experiment
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode, Group, Outcome, Verdict
from ajet.schema.errors import RunFailed, UserError
from ajet.schema.task import Task
from ajet.store import Address, Kept, Policy, check_store, open_reader, open_shared, outage, require_store
from ajet.store.contract import Lease, LeaseLostError
from ajet.store.opening import PASSWORD, USER, StoreLeftovers, find_store_leftovers, write_store_address
from ajet.store.shared import TASKS_KEY
from ajet.train.interrupts import Interrupts
from ajet.train.session import TrainingSession
from ajet.train.sink import RunSink
from ajet.train.step import StepGroups, StepUpdate
from ajet_mongo import changes, connection, documents, driver, positions, records, schema
from ajet_mongo.documents import build_documents, parse_documents
from ajet_mongo.mongo_store import MongoStore
from tests.support.mongod import Mongod
from tests.support.record_fixtures import assert_equal, episode, failed

pytestmark = pytest.mark.slow

pytest.importorskip("pymongo")


class Killed(BaseException):
    """The client's process ended here."""


@contextmanager
def ending(at: int, *, done: bool) -> Iterator[list[int]]:
    """The process is killed at the operation with this number, before it was done or after. Yields how many there
    were."""
    asked, count = connection.MongoConnection.run_operation, [0]

    def counted(self: Any, operation: Any, base: Any) -> Any:
        def one(base: Any) -> Any:
            count[0] += 1
            if count[0] - 1 != at:
                return operation(base)
            if done:
                operation(base)
            raise Killed

        return asked(self, one, base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection.MongoConnection, "run_operation", counted)
        yield count


def as_played(name: str, fence: int) -> Episode:
    """An attempt has one uuid, whoever plays it under which lease; what comes of it differs in each document."""
    whole = episode(name, seed=fence, metadata={"fence": fence})
    return replace(whole, calls=[replace(each, extra={"fence": fence}) for each in whole.calls])


class Played:
    """A trainer that also plays, from one checkpoint to the next."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.saved: dict[str, Any] | None = None
        self.trained: list[int] = []
        """As of that checkpoint."""

    def open(self) -> MongoStore:
        store = open_shared(self.address, at=self.saved, rolls=True, run="run")
        assert isinstance(store, MongoStore)
        return store

    def step(self, store: MongoStore, number: int, size: int) -> None:
        groups = store.closed(size)
        for lease in store.lease(size - len(groups)):
            if not lease.attempts:
                store.put(lease, *(Kept(as_played(f"{name}{lease.order}", lease.fence)) for name in "ef"))
            store.close(lease)
        groups = store.closed(size)
        assert [len(lease.attempts) for lease in groups] == [2] * size
        for one in (one.episode for lease in groups for one in lease.attempts):
            assert_equal(one, as_played(one.uuid, one.metadata["fence"]))
        store.use([lease.order for lease in groups[1:]], number)
        store.discard([groups[0].order], number, "stale")
        saved = store.commit()
        self.trained, self.saved = [*self.trained, *(lease.order for lease in groups)], saved
        store.forget(number - 1)


def two_steps(played: Played) -> None:
    store = played.open()
    played.step(store, 1, 2)
    played.step(store, 2, 2)


def kill_at(mongod: Mongod, at: int, *, done: bool) -> bool:
    """Kill at this operation, and go on. False where there are not so many."""
    played = Played(mongod.empty())
    with ending(at, done=done) as count, suppress(Killed):
        two_steps(played)
    store = played.open()
    for number in (3, 4):
        played.step(store, number, 2)
    assert Counter(played.trained) == Counter(range(len(played.trained))), f"operation {at}, done: {done}"
    records = {each["_id"] for each in store.link.find(schema.RECORD, {})}
    named = {end["record"] for each in store.link.find(schema.TASK, {}) for end in each.get("ends") or ()}
    assert records == named, f"operation {at}, done: {done}: nothing is left of what nobody names"
    for name in (schema.CALL, schema.DATA, schema.BLOB):
        assert {each["record"] for each in store.link.find(name, {})} <= named, f"operation {at}, done: {done}: {name}"
    return count[0] > at


def test_a_kill_between_any_two_operations_loses_nothing(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an episode is written that no position names yet, and where a step has used what no commit has."""
    found: dict[str, list[int]] = {"build_put": [], "commit": []}
    with ending(1 << 30, done=False) as count, pytest.MonkeyPatch.context() as patch:
        for name, thing in (("build_put", changes), ("commit", MongoStore)):
            real = getattr(thing, name)

            def noted(*given: Any, name: str = name, real: Any = real) -> Any:
                found[name].append(count[0])
                return real(*given)

            patch.setattr(thing, name, noted)
        two_steps(Played(mongod.empty()))
    assert kill_at(mongod, found["build_put"][1], done=False) and kill_at(mongod, found["commit"][1], done=True)


@pytest.mark.extra_slow
def test_a_kill_between_many_more_operations_loses_nothing(mongod: Mongod) -> None:
    at = 0
    while all([kill_at(mongod, at, done=done) for done in (False, True)]):
        at += 3
    assert at > 60


def cut_once(asked: Any) -> Any:
    """Each operation is done, its answer is lost, and it is asked again."""
    from pymongo.errors import AutoReconnect

    def cut(self: Any, operation: Any, base: Any) -> Any:
        tries = iter([True])

        def one(base: Any) -> Any:
            answer = operation(base)
            if next(tries, False):
                raise AutoReconnect("cut")
            return answer

        return asked(self, one, base)

    return cut


def test_an_answer_that_is_lost_is_asked_for_again(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(connection.MongoConnection, "run_operation", cut_once(connection.MongoConnection.run_operation))
    played = Played(mongod.empty())
    store = played.open()
    played.step(store, 1, 2)
    played.step(store, 2, 2)
    assert played.trained == [0, 1, 2, 3]
    (mine,) = store.lease(1)
    assert (mine.order, store.depths().leased) == (4, 1)
    store.fail(mine, "no")
    store.give_back(store.lease(1))
    assert [(each.leased, each.waiting) for each in [store.depths()]] == [(0, 1)]
    store = played.open()
    played.step(store, 3, 2)
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("again")))
    store.close(lease)
    for step in (4, 5):
        store.use([lease.order], step, again=[lease.order])
    assert [each.used for each in store.closed()] == [(4, 5)]


@pytest.mark.parametrize("at", range(3))
def test_who_goes_on_writing_after_its_lease_writes_nothing_into_what_another_put(
    at: int, mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that stood still between two documents of an attempt, which another played meanwhile."""
    address = mongod.empty()
    trainer = open_shared(address, rolls=True, run="run")
    late, other = open_shared(address), open_shared(address)
    (lease,) = late.lease(1)
    inserted, insert = list[str](), records.EpisodeRecords.insert_documents

    def stood_still(self: Any, name: str, written: Any, **more: bool) -> None:
        insert(self, name, written, **more)
        if self is not late.records:
            return
        inserted.append(name)
        if len(inserted) == at + 1:
            changes_of = late.link.run_durable
            changes_of(lambda base: base[schema.TASK].update_one({"_id": 0}, [{"$set": changes.build_deadline(-1)}]))
            other.positions.expired_at = float("-inf")
            (again,) = other.lease(1)
            assert (again.order, again.fence) == (0, lease.fence + 1)
            other.put(again, Kept(as_played("e", again.fence)))
            other.close(again)

    monkeypatch.setattr(records.EpisodeRecords, "insert_documents", stood_still)
    with pytest.raises(LeaseLostError):
        late.put(lease, Kept(as_played("e", lease.fence)))
    ((kept,),) = (each.attempts for each in trainer.closed())
    assert_equal(kept.episode, as_played("e", lease.fence + 1))
    assert len(trainer.link.find(schema.RECORD, {})) == 1


@pytest.mark.parametrize(
    "after", ["DispatchedSamplingTask", pytest.param("DBRecordData", marks=pytest.mark.extra_slow),
              pytest.param("Record", marks=pytest.mark.extra_slow)]
)  # fmt: skip
def test_a_server_killed_between_two_documents_of_an_episode_has_both(
    after: str, mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client comes back to the next server, which has what its journal has."""
    store = MongoStore(mongod.uri, mongod.empty().rpartition("/")[2])
    inserted, insert = list[str](), records.EpisodeRecords.insert_documents

    def killed(self: Any, name: str, written: Any, **more: bool) -> None:
        insert(self, name, written, **more)
        if name == after and not inserted:
            inserted.append(name)
            mongod.kill()
            mongod.start()

    monkeypatch.setattr(records.EpisodeRecords, "insert_documents", killed)
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("whole")))
    store.close(lease)
    ((kept,),) = (each.attempts for each in store.closed())
    assert_equal(kept.episode, episode("whole"))


def test_what_killed_puts_left_is_found_by_gc_and_nothing_of_one_that_is_under_way(
    mongod: Mongod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose client was killed and whose lease is lost, one whose record a killed server lost as well."""
    address = mongod.empty()
    store = MongoStore(mongod.uri, address.rpartition("/")[2])
    lost, held = store.lease(2)

    def written(lease: Lease, name: str) -> tuple[Any, changes.Update, str]:
        kept = [Kept(episode(name))]
        ends = store.records.build_ends(kept)
        there = store.records.write_episodes(lease, kept, ends, is_acknowledged=True)
        return there, changes.build_put(lease, ends, {}, 60.0), ends[0]["record"]

    def without_record(name: str, *instead: Any) -> None:
        def lose(base: Any) -> None:
            base[schema.RECORD].delete_one({"_id": name})
            if instead:
                base[schema.RECORD].insert_one({"_id": name})

        store.link.run_durable(lose)

    written(lost, "a")
    store.fail(lost, "its player was killed")
    without_record(written(held, "b")[2])
    there, change, record = written(held, "c")
    write_store_address(tmp_path, address)
    found = find_store_leftovers(tmp_path)
    assert found.count == 2 and found.size > 1000
    assert find_store_leftovers(tmp_path, remove=True) == found and find_store_leftovers(tmp_path) == StoreLeftovers()
    for name in (schema.CALL, schema.DATA):
        assert {each["record"] for each in store.link.find(name, {})} == {record}
    assert [end["uuid"] for end in store.positions.name_records(held, there, change)["ends"]] == ["c"]
    there, change, record = written(held, "d")
    without_record(record, "while gc removes what hangs on it")
    assert len(store.positions.name_records(held, there, change)["ends"]) == 1, "that one is named by nobody"
    assert find_store_leftovers(tmp_path, remove=True).count == 1
    store.put(held, Kept(episode("d")))
    store.close(held)
    ((c, d),) = (each.attempts for each in store.closed())
    assert_equal(c.episode, episode("c"))
    assert_equal(d.episode, episode("d"))
    monkeypatch.setattr(driver, "LEFTOVERS_PATIENCE", 0.1)
    write_store_address(tmp_path, "mongodb://127.0.0.1:1/none")
    assert "does not answer" in find_store_leftovers(tmp_path).why_not


def test_gc_asked_again_removes_no_record_that_a_put_made_meanwhile(
    mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its last command was lost. What has no record's name is none of ours."""
    from pymongo.errors import AutoReconnect

    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.0)
    base_of, ask, asked = mongod.empty().rpartition("/")[2], connection.MongoConnection.run_durable, list[int]()
    MongoStore(mongod.uri, base_of).disconnect()
    there = driver.MongoLeftovers(mongod.uri, base_of, None)

    def insert(base: Any) -> None:
        base[schema.CALL].insert_many([{"_id": "a/0", "record": "a"}, {"_id": "theirs"}])

    def lost_once(self: Any, operation: Any) -> Any:
        def once(base: Any) -> Any:
            done = operation(base)
            asked.append(len(asked))
            if len(asked) == 2:
                base[schema.RECORD].insert_one({"_id": "a", "fence": 3})
                raise AutoReconnect("lost")
            return done

        return ask(self, once)

    there.link.run_durable(insert)
    assert there.find_leftovers() == ([], ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(connection.MongoConnection, "run_durable", lost_once)
        there.remove([], ["a"])
    assert len(asked) == 3 and [each["fence"] for each in there.link.find(schema.RECORD, {})] == [3]
    assert [each["_id"] for each in there.link.find(schema.CALL, {})] == ["theirs"]
    there.close()


def test_positions_that_a_killed_process_made_are_given_out_and_none_that_was_forgotten(
    mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes positions may stand still before it makes them, or be killed before it gives them out."""
    monkeypatch.setattr(positions, "AT_ONCE", 2)
    address = mongod.empty()
    trainer = open_shared(address, rolls=True, run="run")
    late, sampler = open_shared(address), open_shared(address)
    assert isinstance(late, MongoStore) and isinstance(sampler, MongoStore)
    late.positions.insert_positions(range(3))
    assert [lease.order for lease in sampler.lease(2)] == [0, 1] and trainer.depths().next == 2
    leases = [*(Lease(order, 1) for order in (0, 1)), *sampler.lease(2)]
    assert [lease.order for lease in leases] == [0, 1, 2, 3]
    for lease in leases:
        sampler.close(lease)
    trainer.use(range(4), 1)
    trainer.commit()
    trainer.forget(1)
    assert trainer.link.find(schema.TASK, {"status": changes.OVER}) == []  # type: ignore[attr-defined]
    late.positions.insert_positions(range(1, 4))
    assert [lease.order for lease in sampler.lease(3)] == [4, 5, 6]
    assert [lease.order for lease in late.lease(1, below=7)] == [] and trainer.begun() == [4, 5, 6]
    assert {each["_id"] for each in late.link.find(schema.TASK, {})} >= {4, 5, 6}
    assert not late.link.find(schema.TASK, {"_id": {"$lt": 4}}), "nothing is left of those that came too late"


def test_a_floor_does_not_rise_above_what_is_leased_while_it_is_looked_for(
    mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was made is over and forgotten, and a sampler makes more between two looks of the trainer."""
    address = mongod.empty()
    trainer, sampler = open_shared(address, rolls=True, run="run"), open_shared(address)
    leases, find = sampler.lease(2, below=2), connection.MongoConnection.find
    for lease in leases:
        sampler.close(lease)
    trainer.use(range(2), 1)
    trainer.commit()

    def meanwhile(self: Any, name: str, wanted: Any, *more: Any, **rest: Any) -> Any:
        found = find(self, name, wanted, *more, **rest)
        if "$nor" in wanted:
            leases.extend(sampler.lease(1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(connection.MongoConnection, "find", meanwhile)
        trainer.forget(1)
    assert [lease.order for lease in leases] == [0, 1, 2]
    sampler.put(leases[2], Kept(episode("a")))
    assert trainer.begun() == [2]


def test_a_claim_and_a_hand_over_are_one_command_and_a_put_waits_for_two(
    mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documents in three collections are sent without waiting."""
    monkeypatch.setattr(positions, "EXPIRES_EVERY", float("inf"))
    store = MongoStore(mongod.uri, mongod.empty().rpartition("/")[2])
    store.close(store.lease(1)[0])
    told, tell = list[int](), connection.MongoConnection.send_unacknowledged
    with ending(1 << 30, done=False) as count:
        monkeypatch.setattr(
            connection.MongoConnection, "send_unacknowledged", lambda *given: told.append(count[0]) or tell(*given)
        )
        (lease,) = store.lease(1)
        assert count == [1]
        store.put(lease, Kept(episode("a")))
        assert (count, told) == ([6], [1, 2, 3])
        store.close(lease)
        assert count == [7]


def test_an_address_that_asks_for_no_answers_has_them_all_the_same() -> None:
    link = connection.MongoConnection("mongodb://127.0.0.1:1/?w=0", "none", None, patience=60.0)
    try:
        assert link.quick.write_concern.acknowledged and link.durable.write_concern.acknowledged
    finally:
        link.close()


def test_documents_of_which_a_server_does_not_say_that_they_are_in_its_journal_are_written_again() -> None:
    from pymongo.errors import BulkWriteError

    link, asked = connection.MongoConnection("mongodb://127.0.0.1:1", "none", None, patience=60.0), list[str]()

    def insert(written: Any, ordered: bool) -> None:
        asked.extend(written)
        if len(asked) == 1:
            unsure = {"code": 91, "errmsg": "it goes down"}
            raise BulkWriteError({"writeErrors": [], "writeConcernErrors": [unsure]})

    link.quick = {"Blob": SimpleNamespace(insert_many=insert)}  # type: ignore[assignment]
    written: Any = ["a part"]
    try:
        records.EpisodeRecords(link, Redactor({})).insert_documents("Blob", written, is_acknowledged=True)
        assert asked == written * 2
    finally:
        link.close()


def test_a_server_that_goes_down_while_it_waits_for_its_journal_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so beside what it has done."""
    from pymongo.errors import WriteConcernError

    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.0)
    link = connection.MongoConnection("mongodb://127.0.0.1:1", "none", None, patience=60.0)
    codes = iter([11600, 189, 0, 79])

    def write(base: Any) -> str:
        if code := next(codes):
            raise WriteConcernError("no", code)
        return "done"

    try:
        assert link.run_durable(write) == "done"
        with pytest.raises(UserError, match="cannot write"):
            link.run_durable(write)
    finally:
        link.close()


def test_the_last_failure_and_a_revival_whose_answers_are_lost_are_known(
    mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.0)
    store = open_shared(mongod.empty(), rolls=True, max_attempts=1)
    (mine,) = store.lease(1)
    monkeypatch.setattr(connection.MongoConnection, "run_operation", cut_once(connection.MongoConnection.run_operation))
    store.fail(mine, "no")
    assert [each.reasons for each in store.dead()] == [("no",)]
    store.revive(0)
    (again,) = store.lease(1)
    store.close(again)
    assert (again.order, store.depths().closed, store.dead()) == (0, 1, [])


@pytest.mark.parametrize(
    "whole",
    [
        episode(),
        failed(),
        episode(tools=[[{"$ref": "#/x", "$id": 1, "＄": 2, "a.b": {"": None}}]]),
        episode(metadata={"big": 1 << 80, "low": -(1 << 63)}),
        episode(messages=[{"role": "user", "content": "\ud800"}, {"nul\0": "\0"}, {}, {}]),
        episode(verdict=Verdict(None), task=Task(main_query="x" * 5000, task_id="t", metadata={"f": 1e-320, "i": 1})),
    ],
    ids=["whole", "failed", "keys", "numbers", "texts", "no score"],
)
def test_the_documents_are_the_episode(whole: Episode, mongod: Mongod) -> None:
    store = open_shared(mongod.empty(), rolls=True)
    (lease,) = store.lease(1)
    store.put(lease, Kept(whole, alone=True, ended_by="client"))
    store.give_back([lease])
    (again,) = store.lease_kept()
    assert_equal(again.attempts[0].episode, whole)
    assert (again.attempts[0].alone, again.attempts[0].ended_by) == (True, "client")


def test_what_no_document_can_hold_is_kept_in_several(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LARGEST", 2000)
    calls = [replace(episode().calls[0], suffix_ids=np.arange(3000, dtype=np.int32) * 7919)]
    long = replace(episode("long"), calls=calls, timelines=[])
    parts = build_documents(Kept(long), "long", Lease(0, 1), Redactor({}))
    assert len(parts.calls) == 1 and len(parts.blobs) > 1
    assert_equal(parse_documents(parts.record, parts.calls, [], parts.blobs, 0).episode, long)
    whole = episode("many", messages=[{"role": "user", "content": "x" * 5000}, {}, {}, {}])
    parts = build_documents(Kept(whole), "many", Lease(0, 1), Redactor({}))
    assert len(parts.blobs) > 1 and parts.calls == []
    store = open_shared(mongod.empty(), rolls=True)
    (lease,) = store.lease(1)
    store.put(lease, Kept(whole))
    store.close(lease)
    assert_equal(store.closed()[0].attempts[0].episode, whole)
    assert_equal(parse_documents(parts.record, [], [], parts.blobs, 0).episode, whole)


def test_any_client_reads_the_chain(mongod: Mongod) -> None:
    """AgentRL's: a task, its records, the calls of a record, what is trained of it."""
    from pymongo import MongoClient

    store = open_shared(mongod.empty(), rolls=True, redact=Redactor({"MY_API_KEY": "abcdefgh12345678"}))
    (lease,) = store.lease(1)
    told = [{"role": "user", "content": "the key is abcdefgh12345678"}, {"content": "s"}, {"role": "assistant"}, {}]
    store.put(lease, Kept(episode("a", messages=told)), Kept(failed("b")))
    store.close(lease)
    store.use([0], step=4)
    with MongoClient(mongod.uri) as client:
        base = client["ajet"]
        task = base.Task.find_one({"tid": "t1"})
        assert task is not None
        seen = {name: task[name] for name in ("split", "description", "num_samples", "scores", "status")}
        assert seen == {
            "split": "train", "description": "1+1?", "num_samples": 1, "scores": [1.0, None], "status": "over"
        }  # fmt: skip
        records = {each["traj_id"]: each for each in base.Record.find({"task": task["_id"]})}
        assert {name: each["status"] for name, each in records.items()} == {"a": "ready", "b": "failed"}
        assert records["a"]["score"] == 1.0 and records["a"]["trained_count"] == 0
        assert records["a"]["traj"][0]["content"] == "the key is [redacted MY_API_KEY]"
        calls = list(base.DispatchedSamplingTask.find({"record": records["a"]["_id"]}).sort("at"))
        assert [each["request"]["messages"] for each in calls][:2] == [[0, 1], [0, 1, 2, 3]]
        assert calls[0]["created_at_step"] == 3 and calls[3]["status"] == "failed"
        data = list(base.DBRecordData.find({"record": records["a"]["_id"]}).sort("at"))
        assert list(data[1]["logprobs"]) == ["2"]
        vector = data[1]["logprobs"]["2"]
        assert (vector.subtype, len(vector)) == (9, 2 + 4 * len(episode("a").calls[2].logprobs))
        assert np.array_equal(np.frombuffer(vector, "<f4", offset=2), episode("a").calls[2].logprobs)
        assert [(each["reward"], each["messages"], each["scores"]) for each in data] == [
            (1.0, [0, 1, 2, 3, 2], {"0": 1.0, "1": 1.0}), (1.0, [0, 1, 2], {"2": 1.0})
        ]  # fmt: skip
        store.commit()
        trained = {each["traj_id"]: (each["last_trained_step"], each["trained_count"]) for each in base.Record.find()}
        assert trained == {"a": (4, 1), "b": (None, 0)}, "no update is over what failed"


def test_records_say_why_nothing_was_trained_and_no_more_where_that_is_taken_back(mongod: Mongod) -> None:
    from pymongo import MongoClient

    address = mongod.empty()
    store = open_shared(address, rolls=True, run="run")
    saved = store.commit()
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")), Kept(failed("b")), Kept(episode("c", verdict=Verdict(None))))
    store.close(lease)
    store.discard([0], 1, "stale")
    store.commit()

    def told() -> dict[str, Any]:
        with MongoClient(mongod.uri) as client:
            return {each["traj_id"]: (each["status"], each.get("untrained")) for each in client["ajet"].Record.find()}

    assert told() == {"a": ("abandoned", "stale"), "b": ("failed", None), "c": ("completed", None)}
    store = open_shared(address, at=saved, rolls=True, run="run")
    assert told()["a"] == ("ready", None) and len(store.closed()) == 1


def test_a_position_says_what_agentrls_rows_do(mongod: Mongod) -> None:
    from pymongo import MongoClient

    store = open_shared(mongod.empty(), rolls=True, redact=Redactor({"MY_API_KEY": "abcdefgh12345678"}))
    store.announce(Policy("run", 0, "", told={TASKS_KEY: 2}))
    (lease,) = store.lease(1)
    row = {"answer": "abcdefgh12345678", "scorer": "math", "answer_schema": "boxed", "prices": {"tea": 3}}
    store.put(lease, Kept(episode("a", task=Task(main_query="q", task_id="t", metadata=row))))
    with MongoClient(mongod.uri) as client:
        (task,) = client["ajet"].Task.find({"tid": "t"})
    told = {name: task.get(name) for name in ("description", "scorer", "answer_schema", "task_answer", "prices")}
    assert told == {
        "description": "q", "scorer": "math", "answer_schema": "boxed", "task_answer": "[redacted MY_API_KEY]",
        "prices": None,
    }  # fmt: skip
    assert "epoch" not in task and "system_prompt" not in task, "this process has not heard of it; no system prompt"
    assert store.announced() is not None
    asked = [{"role": "system", "content": "abcdefgh12345678 is the key"}, {}, {"role": "assistant"}, {}]
    for lease in store.lease(3):
        whole = replace(episode(f"e{lease.order}", messages=asked), order=lease.order)
        store.put(lease, Kept(whole))
        store.close(lease)
        assert_equal(store.closed()[-1].attempts[0].episode, replace(whole, messages=[
            {"role": "system", "content": "[redacted MY_API_KEY] is the key"}, *asked[1:]
        ]))  # fmt: skip
    with MongoClient(mongod.uri) as client:
        found = list(client["ajet"].Task.find({"_id": {"$in": [1, 2, 3]}}).sort("_id"))
    assert [(each["epoch"], each["system_prompt"]) for each in found] == [
        (epoch, "[redacted MY_API_KEY] is the key") for epoch in (0, 1, 1)
    ]


def test_records_say_what_updates_gave_them_and_no_more_where_that_is_taken_back(mongod: Mongod) -> None:
    from pymongo import MongoClient

    address = mongod.empty()
    store = open_shared(address, rolls=True, run="run")
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")), Kept(failed("b")))
    store.close(lease)

    def told() -> dict[str, Any]:
        with MongoClient(mongod.uri) as client:
            found = list(client["ajet"].Record.find())
        return {
            each["traj_id"]: [(one["step"], one["advantage"]) for one in each.get("advantages", ())] for each in found
        }

    store.use([0], 1, again=[0], advantages={"a": 0.5, "other": 1.0})
    saved = store.commit()
    assert told() == {"a": [(1, 0.5)], "b": []}
    store.use([0], 2, advantages={"a": -0.25})
    assert told()["a"] == [(1, 0.5), (2, -0.25)]
    store = open_shared(address, at=saved, rolls=True, run="run")
    assert told()["a"] == [(1, 0.5)], "no checkpoint has the second one"
    assert_equal(store.closed()[0].attempts[0].episode, episode("a"))
    store.use([0], 2, advantages={"a": 0.75})
    store.commit()
    assert told()["a"] == [(1, 0.5), (2, 0.75)]
    open_shared(address, at=None, rolls=True, run="run")
    assert told()["a"] == []


def test_the_second_half_of_a_step_tells_what_it_gave(
    mongod: Mongod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local loop's; what it makes of the groups is given here."""
    from pymongo import MongoClient

    store = open_shared(mongod.empty(), rolls=True, run="run")
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")))
    store.close(lease)
    group = Group(episode().task, lease.order, [episode("a")])
    batch: Any = SimpleNamespace(outcomes={"a": Outcome(1, 0.5)}, trained_by_episode={})
    experiment = Experiment.from_dict({"ajet": {}}, base=tmp_path)
    run: Any = SimpleNamespace(resumed=None, take_up=lambda: None, episodes=SimpleNamespace(whole_steps=list))
    backbone: Any = SimpleNamespace(tokenizer=None)
    monkeypatch.setattr(RunSink, "commit", lambda *given: {})
    training = TrainingSession(RunSink(experiment, run, lambda *given: None), backbone, store, None, Interrupts())
    training.commit(StepGroups(0.0, [group], by_samplers=True), batch, StepUpdate(0, {}))
    with MongoClient(mongod.uri) as client:
        (record,) = client["ajet"].Record.find()
    assert record["advantages"] == [{"step": 1, "advantage": 0.5}]


def test_a_store_of_another_version_is_refused_unchanged(mongod: Mongod) -> None:
    from pymongo import MongoClient

    address = mongod.empty()
    with MongoClient(mongod.uri) as client:
        client.drop_database("ajet")  # what other tests made in it
        check_store(Address.of(address))
        assert client["ajet"].list_collection_names() == [], "who looks makes nothing"
    open_shared(address)
    with MongoClient(mongod.uri) as client:
        base = client["ajet"]
        assert "uses.of_1" in base.Task.index_information()
        for version in (schema.VERSION - 1, schema.VERSION + 1):
            base.ajet_ledger.update_one({}, {"$set": {"version": version}})
            for opens in (open_shared, check_store, open_reader):
                with pytest.raises(UserError, match=f"version {version}"):
                    opens(Address.of(address))
            assert base.ajet_ledger.find_one()["version"] == version  # type: ignore[index]


def test_a_server_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(UserError, match="does not answer") as refused:
        MongoStore("mongodb://127.0.0.1:1/", "run", login=("me", "hunter2-hunter2"), patience=0.1)
    assert "hunter2" not in str(refused.value) and "mongodb://127.0.0.1:1/run" in str(refused.value)


def test_a_server_that_is_not_there_as_a_command_begins_is_no_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = connection.MongoConnection.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", 0.1)
    for ask in (open_shared, lambda address: require_store(Address.of(address))):
        with pytest.raises(UserError, match="does not answer") as refused:
            ask("mongodb://127.0.0.1:1/run")
        assert not isinstance(refused.value, RunFailed) and refused.value.where == "mongodb://127.0.0.1:1/run"


def test_a_user_with_a_wrong_password_is_refused_and_the_right_one_let_in(mongod: Mongod, monkeypatch) -> None:
    from pymongo import MongoClient

    with MongoClient(mongod.uri) as client:
        client.admin.command("createUser", "ajet", pwd="right-one-1234", roles=["root"])
        try:
            monkeypatch.setenv("AJET_STORE_USER", "ajet")
            monkeypatch.setenv("AJET_STORE_PASSWORD", "right-one-1234")
            open_shared(mongod.empty(), rolls=True).commit()
            monkeypatch.setenv("AJET_STORE_PASSWORD", "wrong-one-1234")
            with pytest.raises(UserError, match="refuses this user") as refused:
                open_shared(f"{mongod.uri}/ajet")
        finally:
            client.admin.command("dropUser", "ajet")
    assert "wrong-one" not in str(refused.value)


def test_doctor_shows_a_store_on_one_screen(mongod: Mongod, capfd: pytest.CaptureFixture[str]) -> None:
    from ajet.cli import launcher

    def doctor(address: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            launcher.main(["doctor", "--store", address])
        return int(ended.value.code or 0), " ".join(capfd.readouterr().out.split())

    address = mongod.empty()
    code, said = doctor(address)
    assert code == 0 and "does not exist yet" in said
    store = open_shared(address, rolls=True, max_attempts=1)
    store.join("sampler", "machine-7")
    lost, held = store.lease(2)
    store.put(held, Kept(episode("a")))
    store.fail(lost, "the tool's server is down")
    store.announce(Policy("run", 3, "/weights/3"))
    code, said = doctor(address)
    for told in (
        "MongoDB 6.", "one server without a replica set", "per round trip", "from this machine's", "version 5", "all 6",
        "1 dead, 1 running; 1 episodes", "position 0: the tool's server is down", "step 3,", "sampler machine-7",
        "1 lease",
    ):  # fmt: skip
        assert told in said, said
    assert code == 0 and len(store.dead()) == 1
    code, said = doctor(address.replace(str(mongod.port), "1"))
    assert code == 1 and "does not answer" in said and "Traceback" not in said


def test_the_compose_file_has_the_names_that_a_store_reads_and_lets_this_machine_alone_in() -> None:
    file = Path(__file__).parents[3] / "deploy" / "mongo" / "docker-compose.yml"
    told = yaml.safe_load(file.read_text())
    server = told["services"]["mongo"]
    assert server["environment"]["MONGO_INITDB_ROOT_USERNAME"] == f"${{{USER}:-ajet}}"
    (secret,) = server["secrets"]
    assert told["secrets"][secret] == {"environment": PASSWORD}, "the password is in no file"
    assert server["environment"]["MONGO_INITDB_ROOT_PASSWORD_FILE"] == f"/run/secrets/{secret}"
    assert server["ports"] == ["${AJET_STORE_ADDRESS:-127.0.0.1}:27017:27017"]
    assert [volume.partition(":")[0] for volume in server["volumes"]] == list(told["volumes"])


def test_a_server_that_does_not_answer_is_waited_for_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    from pymongo.errors import AutoReconnect

    for name in ("FIRST_PAUSE", "LOGGED_AFTER"):
        monkeypatch.setattr(outage, name, 0.0)
    link, failures, said = (
        connection.MongoConnection("mongodb://127.0.0.1:1", "none", None),
        iter(range(3)),
        list[str](),
    )
    sink = logger.add(lambda line: said.append(str(line)), format="{message}")

    def read(base: Any) -> str:
        if next(failures, None) is not None:
            raise AutoReconnect("nobody")
        return "read"

    try:
        assert link.run_durable(read) == "read"
        assert len(said) == 2 and all("mongodb://127.0.0.1:1/none" in line for line in said), "away, and back"
    finally:
        logger.remove(sink)
        link.close()
