"""MongoStore: the store of processes on any number of machines.

Invariant: no change needs two documents at once, since a server without replicas has no transactions. What belongs
together is ordered: an episode's documents are written before its position names it, and what no position names is not
there; a use names the commit that is to come, and holds once the ledger's document has that one as its head. So a kill
between any two operations leaves a state that was, or one that the next trainer mends when it opens the store
(`_mend`). A position that was forgotten is never given out again: those below the ledger's `floor` are over, whatever
a late client writes there.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ajet.record.secrets import Redactor
from ajet.schema.episode import UntrainedReason
from ajet.store.contract import Kept, Lease, LeaseLost
from ajet.store.mongo import changes
from ajet.store.mongo.changes import CLOSED, DEAD, OVER, RUNNING, WAITING
from ajet.store.mongo.connection import Connection
from ajet.store.mongo.documents import Document, documents_of, kept_of, score_of, task_of
from ajet.store.mongo.schema import BLOB, CALL, COMMITS, DATA, LEDGER, MEMBERS, RECORD, TASK, THE_LEDGER, ledger_of
from ajet.store.shared import (
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    Announced,
    Dead,
    Depths,
    Member,
    Policy,
    Role,
    fenced,
    of_another_run,
    of_another_store,
)

if TYPE_CHECKING:
    from pymongo.database import Database

EXPIRES_EVERY = 1.0
"""Seconds between two looks of a process for leases that have ended."""
DUPLICATE = 11000
Usable = Callable[[Sequence[Kept]], bool]


class MongoStore:
    """In one database of a server. See `SqliteStore` for who opens it how."""

    def __init__(
        self,
        uri: str,
        database: str,
        *,
        login: tuple[str, str] | None = None,
        lease_seconds: float = LEASE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
        at: Mapping[str, Any] | None = None,
        rolls: bool = False,
        run: str = "",
        redact: Redactor | None = None,
        usable: Usable | None = None,
        patience: float | None = None,
    ) -> None:
        """`login`: user and password. `patience`: seconds for which a server that does not answer is asked again.
        Raises UserError."""
        more = {} if patience is None else {"patience": patience}
        self._link = Connection(uri, database, login, **more)
        self._seconds, self._most, self._redact = lease_seconds, max_attempts, redact or Redactor({})
        self._lock = threading.RLock()
        self._name = f"process {os.getpid()}"
        self._trainer = 0
        self._next, self._looked = 0, float("-inf")
        self._ledger = ledger_of(self._link, uuid.uuid4().hex)
        if rolls:
            self._roll(at, run)
            self._mend()
            if usable is not None:
                self._drop(usable)

    def disconnect(self) -> None:
        """Let go of the server."""
        self._link.close()

    def lease(self, count: int, *, below: int | None = None) -> list[Lease]:
        """See the contract."""
        with self._lock:
            self._before_taking()
            found: list[Document] = []
            while len(found) < count and (one := self._claim({"status": WAITING, "_id": {"$gte": self._floor}})):
                found.append(one)
            while len(found) < count and (below is None or self._next < below):
                found += self._fresh()
            return self._leases(self._none_forgotten(found))

    def bring(self) -> Lease:
        """See the contract."""
        with self._lock:
            self._before_taking()
            more = {"$inc": {"brought": 1}}
            number = self._link.ask(lambda base: _changed(base, LEDGER, THE_LEDGER, more))["brought"]
            (lease,) = self._leases([self._claim({"_id": -number, "status": "new"}, upsert=True)])
            return lease

    def lease_kept(self) -> list[Lease]:
        """See the contract."""
        with self._lock:
            self._before_taking()
            found = []
            while one := self._claim({"status": WAITING, "ends.0": {"$exists": True}}):
                found.append(one)
            return self._leases(found)

    def put(self, lease: Lease, *kept: Kept) -> None:
        """See the contract."""
        if not kept:
            return
        new = [one.episode.uuid for one in kept if self._written(lease, one)]
        ends = [{"uuid": one.episode.uuid, "score": score_of(one.episode)} for one in kept]
        ends = [end for end in ends if end["uuid"] in new]
        change = changes.put(ends, task_of(kept[0].episode, self._redact), self._seconds)
        if not self._change(changes.held(lease), change):
            self._remove(new, {"task": lease.order, "fence": lease.fence})
            raise _lost(lease)

    def close(self, lease: Lease) -> None:
        """See the contract."""
        if not self._change(changes.held(lease), [{"$set": {"status": CLOSED, "whole": True}}], done=(CLOSED, OVER)):
            raise _lost(lease)

    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """See the contract."""
        with self._lock:
            if self._trainer:
                self._take_back_late_uses()
            wanted = {"status": CLOSED, "_id": {"$nin": list(but)}}
            return self._leases(self._find(TASK, wanted, limit=count or 0))

    def begun(self) -> list[int]:
        """See the contract."""
        wanted = {"status": {"$in": [WAITING, RUNNING, CLOSED]}, "_id": {"$gte": 0}}
        return [each["_id"] for each in self._find(TASK, wanted, {"_id": 1})]

    def use(self, orders: Iterable[int], step: int) -> None:
        """See the contract."""
        self._end(orders, step, None)

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """See the contract."""
        self._end(orders, step, reason)

    def give_back(self, leases: Iterable[Lease]) -> None:
        """See the contract."""
        for lease in leases:
            if not self._change(changes.held(lease), [{"$set": {"status": WAITING}}], done=(WAITING,)):
                raise _lost(lease)

    def commit(self) -> dict[str, Any]:
        """See the contract. The uses have the commit's name already."""
        with self._lock:
            self._require_trainer()
            name, following = self._ledger["open"], uuid.uuid4().hex
            made = {"$setOnInsert": {"earlier": self._ledger["head"]}}
            self._link.ask(lambda base: base[COMMITS].update_one({"_id": name}, made, upsert=True))
            self._mark({"uses.of": name})
            self._amend({"$set": {"head": name, "open": following}})
            return {"commit": name}

    def forget(self, step: int) -> None:
        """See the contract."""
        with self._lock:
            self._require_trainer()
            of = {"of": {"$in": self._held_names()}, "step": {"$lte": step}}
            found = self._find(TASK, {"status": OVER, "uses": {"$elemMatch": of}, "ends": {"$ne": None}}, {"ends": 1})
            orders = [each["_id"] for each in found]
            for start in range(0, len(found), 100):
                self._remove([end["uuid"] for each in found[start : start + 100] for end in each["ends"]])
            self._update(TASK, {"_id": {"$in": orders}}, {"$set": {"ends": None, "scores": [], "reasons": []}})
            self._raise_floor()

    def renew(self, leases: Iterable[Lease]) -> None:
        """See the contract."""
        wanted = list(leases)
        self._update(MEMBERS, {"_id": self._name}, [{"$set": {"seen": "$$NOW"}}])
        if not wanted:
            return
        each = [changes.held(lease) for lease in wanted]
        self._update(TASK, {"$or": each}, [{"$set": changes.until(self._seconds)}])
        still = {found["_id"] for found in self._find(TASK, {"$or": each}, {"_id": 1})}
        if lost := [lease.order for lease in wanted if lease.order not in still]:
            raise LeaseLost(f"positions {lost} are another's by now, or over")

    def fail(self, lease: Lease, reason: str) -> None:
        """See the contract."""
        failed = changes.failed(self._redact(reason), self._most)
        if not self._change(changes.held(lease), failed, done=(WAITING, DEAD)):
            raise _lost(lease)

    def dead(self) -> list[Dead]:
        """See the contract."""
        found = self._find(TASK, {"status": DEAD})
        return [Dead(each["_id"], tuple(each["reasons"]), len(each["ends"])) for each in found]

    def revive(self, order: int) -> None:
        """See the contract."""
        again: changes.Update = [{"$set": {"status": WAITING, "reasons": []}}]
        if not self._change({"_id": order, "status": DEAD}, again, done=(WAITING, RUNNING)):
            raise LeaseLost(f"position {order} is not dead")

    def announce(self, policy: Policy) -> None:
        """See the contract."""
        said = {"policy": {"$literal": asdict(policy)}, "policy_of": self._trainer, "policy_at": "$$NOW"}
        with self._lock:
            self._require_trainer()
            self._amend([{"$set": said}])

    def announced(self) -> Announced | None:
        """See the contract."""
        (found,) = self._ages(LEDGER, "policy_at", {**THE_LEDGER})
        if "policy" not in found:
            return None
        return Announced(Policy(**found["policy"]), found["policy_of"], found["policy_at_age"])

    def join(self, role: Role, name: str, told: Mapping[str, Any] | None = None) -> None:
        """See the contract."""
        self._name = name
        said = {"role": role, "told": {"$literal": self._redact.tree(dict(told or {}))}, "seen": "$$NOW"}
        change = [{"$set": {**said, "joined": {"$ifNull": ["$joined", "$$NOW"]}}}]
        self._link.ask(lambda base: base[MEMBERS].update_one({"_id": name}, change, upsert=True))

    def leave(self) -> None:
        """See the contract."""
        self._link.ask(lambda base: base[MEMBERS].delete_one({"_id": self._name}))

    def members(self) -> list[Member]:
        """See the contract."""
        holds = self._counted([{"$match": {"status": RUNNING}}, {"$sortByCount": "$holder"}])
        found = self._ages(MEMBERS, "seen", {}, "joined")
        members = []
        for each in found:
            ages = each["seen_age"], each["joined_age"]
            members.append(Member(each["role"], each["_id"], *ages, holds.get(each["_id"], 0), each["told"]))
        return sorted(members, key=lambda each: (each.role != "trainer", each.name))

    def depths(self) -> Depths:
        """See the contract."""
        with self._lock:
            self._expire()
            found = self._counted([{"$match": {"ends": {"$ne": None}}}, {"$sortByCount": "$status"}])
            names = {"waiting": WAITING, "leased": RUNNING, "closed": CLOSED, "over": OVER, "dead": DEAD}
            return Depths(**{name: found.get(state, 0) for name, state in names.items()}, next=self._last() + 1)

    def _take_back_late_uses(self) -> None:
        """Of an earlier trainer, which was about to write them when this one began."""
        late = {"status": OVER, "ends": {"$ne": None}, "uses.of": {"$in": self._ledger["void"]}}
        if self._find(TASK, late, {"_id": 1}, limit=1):
            holding = [*self._held_names(), self._ledger["open"]]
            self._update(TASK, {"$and": [late, {"uses.of": {"$nin": holding}}]}, changes.reopened())

    def _before_taking(self) -> None:
        if self._trainer:
            self._require_trainer()
        if time.monotonic() - self._looked >= EXPIRES_EVERY:
            self._expire()

    def _expire(self) -> None:
        self._looked = time.monotonic()
        self._refresh()
        latest = self._ledger["trainer"]
        self._update(TASK, changes.fallen_silent(latest), changes.expired(self._most))
        self._update(TASK, changes.of_earlier_trainers(latest), [{"$set": {"status": WAITING}}])

    def _claim(self, wanted: Document, *, upsert: bool = False) -> Document | None:
        from pymongo import ReturnDocument

        mark, tries = uuid.uuid4().hex, 0
        change = changes.claim(self._name, self._trainer, self._seconds, mark)
        options: dict[str, Any] = {"sort": [("_id", 1)], "return_document": ReturnDocument.AFTER, "upsert": upsert}

        def once(base: Database[dict[str, Any]]) -> Document | None:
            nonlocal tries
            tries += 1
            mine = base[TASK].find_one({"mark": mark}) if tries > 1 else None  # by a try whose answer was lost
            return mine or base[TASK].find_one_and_update(wanted, change, **options)

        return self._link.ask(once)

    def _fresh(self) -> list[Document]:
        """The next position of the order; none where another took it first."""
        from pymongo.errors import DuplicateKeyError

        try:
            one = self._claim({"_id": self._next, "status": "new"}, upsert=True)
        except DuplicateKeyError:
            self._next = max(self._next, self._last()) + 1
            return []
        self._next += 1
        assert one is not None
        return [one]

    def _last(self) -> int:
        """The highest position that anybody ever had."""
        found = self._find(TASK, {"_id": {"$gte": 0}}, {"_id": 1}, order=-1, limit=1)
        return max(self._floor - 1, *(each["_id"] for each in found), -1)

    def _none_forgotten(self, found: list[Document]) -> list[Document]:
        """Those that are not over for good: what is below the floor was made by who knew of no floor."""
        if found:
            self._refresh()
        late = [each["_id"] for each in found if each["_id"] < self._floor]
        if late:
            self._next = max(self._next, self._floor)
            self._link.ask(lambda base: base[TASK].delete_many({"_id": {"$in": late}}))
        return [each for each in found if each["_id"] not in late]

    def _written(self, lease: Lease, one: Kept) -> bool:
        """Write an episode's documents, the record last. False where another put it before, and it counts."""
        from pymongo.errors import BulkWriteError, WriteError

        for as_text in (False, True):
            parts = documents_of(one, lease.order, lease.fence, self._redact, as_text=as_text)
            try:
                self._insert(BLOB, parts.blobs)
                self._insert(CALL, parts.calls)
                self._insert(DATA, parts.data)
                if not self._insert(RECORD, [parts.record]):
                    break
                return True
            except (BulkWriteError, WriteError):
                if as_text:
                    raise
        for found in self._find(RECORD, {"_id": one.episode.uuid}):
            if found["task"] == lease.order and found["fence"] == lease.fence:
                return True  # by this very put, whose answer was lost
            if self._find(TASK, {"_id": found["task"], "ends.uuid": one.episode.uuid}, {"_id": 1}):
                return False
        self._remove([one.episode.uuid])
        return self._written(lease, one)

    def _insert(self, name: str, documents: Sequence[Document]) -> bool:
        """False where one was there."""
        from pymongo.errors import BulkWriteError

        if not documents:
            return True
        try:
            self._link.ask_quickly(lambda base: base[name].insert_many(documents, ordered=False))
        except BulkWriteError as error:
            told = error.details or {}
            if any(each["code"] != DUPLICATE for each in told["writeErrors"]):
                raise
            return False
        return True

    def _remove(self, uuids: Sequence[str], only: Mapping[str, Any] | None = None) -> None:
        """Records and what hangs on them. `only`: of records that are so."""
        if only is not None:
            found = self._find(RECORD, {"_id": {"$in": list(uuids)}, **only}, {"_id": 1})
            uuids = [each["_id"] for each in found]
        if not uuids:
            return
        gone = {"$in": list(uuids)}

        def parts(base: Database[dict[str, Any]]) -> None:
            for name in (BLOB, CALL, DATA):
                base[name].delete_many({"record": gone})

        self._link.ask_quickly(parts)
        self._link.ask(lambda base: base[RECORD].delete_many({"_id": gone}))

    def _end(self, orders: Iterable[int], step: int, reason: UntrainedReason | None) -> None:
        wanted = sorted(set(orders))
        with self._lock:
            self._require_trainer()
            name = self._ledger["open"]
            there = {"_id": {"$in": wanted}, "status": {"$in": [RUNNING, CLOSED]}}
            free = {each["_id"] for each in self._find(TASK, there, {"_id": 1})}
            if foreign := [order for order in wanted if order not in free]:
                raise LeaseLost(f"positions {foreign} are not leased")
            self._update(TASK, there, changes.use(name, step, reason))
            ours = {"_id": {"$in": wanted}, "uses.of": name}
            took = {each["_id"] for each in self._find(TASK, ours, {"_id": 1})}
            if lost := [order for order in wanted if order not in took]:
                self._update(TASK, {**ours, "status": OVER}, changes.unused(name))
                raise LeaseLost(f"positions {lost} are not leased")

    def _roll(self, at: Mapping[str, Any] | None, run: str) -> None:
        """Be the trainer, from this commit on."""
        name = None if at is None else at.get("commit")
        if at is not None and not self._find(COMMITS, {"_id": name}):
            raise of_another_store(self._link.shown)
        self._change_ledger({**THE_LEDGER, "run": None}, {"$set": {"run": run}})
        void = {"$slice": [{"$concatArrays": ["$void", ["$open"]]}, -1000]}
        mine = {"trainer": {"$add": ["$trainer", 1]}, "head": name, "void": void, "open": uuid.uuid4().hex}
        found = self._change_ledger({**THE_LEDGER, "run": run}, [{"$set": mine}])
        if found is None:
            raise of_another_run(self._link.shown)
        self._ledger, self._trainer = found, found["trainer"]

    def _mend(self) -> None:
        """Let those uses hold that the ledger's head knows, and no other, and let nothing be there that is nobody's."""
        names = self._held_names()
        self._update(TASK, {"status": {"$ne": OVER}, **changes.holding(names)}, [{"$set": {"status": OVER}}])
        back = {"status": OVER, "uses.of": {"$nin": names}, "ends": {"$ne": None}}
        orders = [each["_id"] for each in self._find(TASK, back, {"_id": 1})]
        self._update(RECORD, {"task": {"$in": orders}}, {"$set": {"trained_count": 0, "last_trained_step": None}})
        self._update(TASK, back, changes.reopened())
        self._update(TASK, changes.of_earlier_trainers(self._trainer), [{"$set": {"status": WAITING}}])
        self._raise_floor()
        self._sweep()

    def _sweep(self) -> None:
        """Remove records that no position names, and whose put can't be under way: its lease is lost."""
        joined: list[Document] = [
            {"$lookup": {"from": TASK, "localField": "task", "foreignField": "_id", "as": "at"}},
            {"$project": {"fence": 1, "at": {"$first": "$at"}}},
            {"$match": {"$expr": {"$not": {"$in": ["$_id", {"$ifNull": ["$at.ends.uuid", []]}]}}}},
            {"$match": {"$expr": {"$or": [{"$ne": ["$at.status", RUNNING]}, {"$ne": ["$at.fence", "$fence"]}]}}},
            {"$project": {"_id": 1}},
        ]
        found = self._link.ask(lambda base: [each["_id"] for each in base[RECORD].aggregate(joined)])
        for start in range(0, len(found), 1000):
            self._remove(found[start : start + 1000])

    def _drop(self, usable: Usable) -> None:
        there = {"status": {"$in": [WAITING, CLOSED]}, "ends.0": {"$exists": True}}
        for lease in self._leases(self._find(TASK, there)):
            if not usable(lease.kept):
                anew = {"$set": {"status": WAITING, "whole": False, "ends": [], "scores": []}}
                self._update(TASK, {"_id": lease.order}, anew)
                self._remove([one.episode.uuid for one in lease.kept])

    def _raise_floor(self) -> None:
        """Below the lowest position that is kept all are over; their documents need not be there."""
        kept = {"_id": {"$gte": 0}, "$nor": [{"status": OVER, "ends": None}]}
        lowest = self._find(TASK, kept, {"_id": 1}, limit=1)
        floor = lowest[0]["_id"] if lowest else self._last() + 1
        if floor > self._floor:
            self._amend({"$max": {"floor": floor}})
        below = {"_id": {"$gte": 0, "$lt": floor}}
        self._link.ask(lambda base: base[TASK].delete_many(below))

    def _mark(self, wanted: Document) -> None:
        """Records say what became of them: for readers; what counts is the position."""
        steps: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for each in self._find(TASK, wanted, {"uses": 1}):
            last = each["uses"][-1]
            steps[last["step"], last["reason"] is None].append(each["_id"])

        def say(base: Database[dict[str, Any]]) -> None:
            for (step, trained), orders in steps.items():
                said = {"trained_count": 1, "last_trained_step": step} if trained else {"status": "abandoned"}
                base[RECORD].update_many({"task": {"$in": orders}}, {"$set": said})

        self._link.ask_quickly(say)

    def _held_names(self) -> list[str]:
        """The commits that the ledger's head goes on from, and itself."""
        earlier = {each["_id"]: each["earlier"] for each in self._find(COMMITS, {})}
        names, name = [], self._ledger["head"]
        while name is not None and name in earlier:
            names.append(name)
            name = earlier[name]
        return names

    def _leases(self, found: Iterable[Document | None]) -> list[Lease]:
        """With what was put of each."""
        tasks = [each for each in found if each is not None]
        uuids = [end["uuid"] for each in tasks for end in each["ends"]]
        kept = self._kept(uuids) if uuids else {}
        return [
            Lease(each["_id"], each["fence"], tuple(kept[end["uuid"]] for end in each["ends"])) for each in tasks
        ]  # fmt: skip

    def _kept(self, uuids: Sequence[str]) -> dict[str, Kept]:
        parts: dict[str, dict[str, list[Document]]] = {}
        for name in (CALL, DATA, BLOB):
            parts[name] = defaultdict(list)
            for each in self._find(name, {"record": {"$in": list(uuids)}}):
                parts[name][each["record"]].append(each)
        return {
            record["_id"]: kept_of(record, *(parts[name][record["_id"]] for name in (CALL, DATA, BLOB)))
            for record in self._find(RECORD, {"_id": {"$in": list(uuids)}})
        }

    def _change(self, wanted: Document, change: changes.Update, *, done: Sequence[str] = ()) -> bool:
        """Change a position; whether it was so. `done`: the states in which it can be where this was done already, by
        a try whose answer was lost."""
        tries = 0

        def once(base: Database[dict[str, Any]]) -> bool:
            nonlocal tries
            tries += 1
            if base[TASK].update_one(wanted, change).matched_count:
                return True
            return tries > 1 and base[TASK].find_one({**wanted, "status": {"$in": list(done)}}) is not None

        return self._link.ask(once)

    def _update(self, name: str, wanted: Document, change: Any) -> None:
        self._link.ask(lambda base: base[name].update_many(wanted, change))

    def _find(
        self, name: str, wanted: Document, fields: Document | None = None, *, order: int = 1, limit: int = 0
    ) -> list[Document]:
        return self._link.ask(lambda base: list(base[name].find(wanted, fields, limit=limit).sort("_id", order)))

    def _ages(self, name: str, time_of: str, wanted: Document, *more: str) -> list[Document]:
        """Documents, with the seconds since each of these times."""
        ages = {f"{each}_age": {"$divide": [{"$subtract": ["$$NOW", f"${each}"]}, 1000]} for each in (time_of, *more)}
        return self._link.ask(lambda base: list(base[name].aggregate([{"$match": wanted}, {"$addFields": ages}])))

    def _counted(self, stages: list[Document]) -> dict[str, int]:
        return self._link.ask(lambda base: {each["_id"]: each["count"] for each in base[TASK].aggregate(stages)})

    @property
    def _floor(self) -> int:
        return int(self._ledger["floor"])

    def _refresh(self) -> None:
        found = self._link.ask(lambda base: base[LEDGER].find_one(THE_LEDGER))
        assert found is not None
        self._ledger = found
        self._next = max(self._next, self._floor)

    def _require_trainer(self) -> None:
        self._refresh()
        if not self._trainer or self._ledger["trainer"] != self._trainer:
            raise fenced(self._link.shown, self._trainer, self._ledger["trainer"])

    def _amend(self, change: Any) -> None:
        """Of the ledger, as its trainer."""
        found = self._change_ledger({**THE_LEDGER, "trainer": self._trainer}, change)
        if found is None:
            self._require_trainer()
            return
        self._ledger = found

    def _change_ledger(self, wanted: Document, change: Any) -> Document | None:
        from pymongo import ReturnDocument

        after = ReturnDocument.AFTER
        return self._link.ask(lambda base: base[LEDGER].find_one_and_update(wanted, change, return_document=after))


def _changed(base: Database[dict[str, Any]], name: str, wanted: Document, change: Any) -> Document:
    from pymongo import ReturnDocument

    found = base[name].find_one_and_update(wanted, change, return_document=ReturnDocument.AFTER)
    assert found is not None
    return found


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"position {lease.order} is not leased under number {lease.fence}")
