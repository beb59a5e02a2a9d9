"""MongoStore: the store of processes on any number of machines.

Invariant: no change needs two documents at once, since a server without replicas has no transactions. What belongs
together is ordered: an episode's documents are written before its position names it, and what no position names is not
there; a use names the commit that is to come, and holds once the ledger's document has that one as its head. So a kill
between any two operations leaves a state that was, or one that the next trainer mends when it opens the store
(`_mend`). Whose a position is, and that one that was forgotten is never given out again, `positions` keeps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ajet.record.secrets import Redactor
from ajet.schema.episode import UntrainedReason
from ajet.store.contract import Kept, Lease, LeaseLostError, StoreUnreachableError
from ajet.store.outage import patience_limit
from ajet.store.shared import (
    NONE,
    TASKS_KEY,
    AnnouncedPolicy,
    DeadLetter,
    Policy,
    Role,
    StoreDepths,
    StoreMember,
    StoreOptions,
    Usable,
)
from ajet_mongo import changes
from ajet_mongo.changes import CLOSED, DEAD, OVER, RUNNING, WAITING
from ajet_mongo.connection import Connection
from ajet_mongo.documents import Document, task_of
from ajet_mongo.ledger import Ledger
from ajet_mongo.positions import Positions
from ajet_mongo.records import TRIES, Records, steps_of
from ajet_mongo.schema import LEDGER, MEMBERS, TASK, THE_LEDGER


class MongoStore:
    """The store in one database of a MongoDB server. See `SqliteStore` for who opens it how."""

    def __init__(
        self,
        uri: str,
        database: str,
        opener: StoreOptions | None = None,
        *,
        login: tuple[str, str] | None = None,
        patience: float | None = None,
    ) -> None:
        """`login`: user and password. `patience`: seconds for which a server that does not answer is asked again.
        Raises UserError."""
        who = opener or StoreOptions()
        more = {} if patience is None else {"patience": patience}
        later = who.unreachable_timeout if patience is None else patience
        self._link = Connection(uri, database, login, later, **more)
        self._seconds, self._most, self._redact = who.lease_seconds, who.max_attempts, who.redact or Redactor({})
        self._records = Records(self._link, self._redact)
        self._lock = threading.RLock()
        self._name = f"process {os.getpid()}"
        self._count: int | None = None
        """Tasks of an epoch, once a policy that was heard of says so."""
        self._ledger = Ledger(self._link)
        self._positions = Positions(self._link, self._ledger, self._seconds, who.max_attempts)
        if who.rolls:
            self._ledger.roll(who.at, who.run)
            if who.settings:
                self._ledger.keep_settings(who.settings)
            self._mend()
            if who.usable is not None:
                self._drop(who.usable)
        self._link.outage.patience = later

    def disconnect(self) -> None:
        """Let go of the server."""
        self._link.close()

    def lease(self, count: int, *, below: int | None = None) -> list[Lease]:
        """See the contract."""
        with self._locked():
            self._positions.before_taking()
            leases: list[Lease] = []
            while len(leases) < count and (found := self._positions.claimed(self._name, count - len(leases), below)):
                leases += self._records.leases(found)
            return leases

    def bring(self) -> Lease:
        """See the contract."""
        with self._locked():
            self._positions.before_taking()
            number = self._ledger.bring()
            (lease,) = self._records.leases(
                [self._positions.claim(self._name, {"_id": -number, "status": "new"}, upsert=True)]
            )
            return lease

    def lease_kept(self) -> list[Lease]:
        """See the contract."""
        with self._locked():
            self._positions.before_taking()
            found = []
            while one := self._positions.claim(self._name, {"status": WAITING, "ends.0": {"$exists": True}}):
                found.append(one)
            return self._records.leases(found)

    def put(self, lease: Lease, *kept: Kept) -> None:
        """See the contract."""
        if not kept:
            return
        ends = self._records.ends(kept)
        about = task_of(kept[0].episode, self._redact, self._count)
        for tried in range(TRIES):
            there = self._records.written(lease, kept, ends, heard=tried > 0)
            change = changes.put(lease, ends, about, self._seconds)
            position = self._positions.name(lease, there, change)
            held = position.get("status") == RUNNING and position.get("fence") == lease.fence
            named = {end["uuid"]: end["record"] for end in position.get("ends") or ()}
            ours = [end["record"] for end in ends if named.get(end["uuid"]) == end["record"]]
            if ours or not held or all(end["uuid"] in named for end in ends):
                self._records.remove([end["record"] for end in ends if end["record"] not in ours])
                if not ours and not held:
                    raise _lost(lease)
                return
        raise self._records.loses()

    def close(self, lease: Lease) -> None:
        """See the contract."""
        if not self._positions.change(
            changes.held(lease), [{"$set": {"status": CLOSED, "whole": True, "since": "$$NOW"}}], done=(CLOSED, OVER)
        ):
            raise _lost(lease)

    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """See the contract."""
        with self._locked():
            if self._ledger.own:
                self._take_back_late_uses()
            wanted = {"status": CLOSED, "_id": {"$nin": list(but)}}
            found = self._link.find(TASK, wanted, limit=count or 0)
            return self._records.leases(found, self._holding(found))

    def begun(self) -> list[int]:
        """See the contract."""
        wanted = {"status": {"$in": [WAITING, RUNNING, CLOSED]}, "_id": {"$gte": 0}}
        found = self._link.find(TASK, wanted, {"_id": 1, "uses": 1})
        names = self._holding(found)
        return [each["_id"] for each in found if not steps_of(each, names)]

    def use(
        self, orders: Iterable[int], step: int, *, again: Collection[int] = (), advantages: Mapping[str, float] = NONE
    ) -> None:
        """See the contract."""
        wanted = list(orders)
        self._end(wanted, step, None, again)
        if advantages:
            found = self._link.find(TASK, {"_id": {"$in": wanted}}, {"ends": 1})
            ends = [end for each in found for end in each["ends"] or ()]
            told = {end["record"]: advantages[end["uuid"]] for end in ends if end["uuid"] in advantages}
            self._records.note_advantages(told, step)

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """See the contract."""
        self._end(orders, step, reason)

    def give_back(self, leases: Iterable[Lease]) -> None:
        """See the contract."""
        for lease in leases:
            if not self._positions.change(changes.held(lease), [{"$set": {"status": WAITING}}], done=(WAITING,)):
                raise _lost(lease)

    def commit(self) -> dict[str, Any]:
        """See the contract. The uses have the commit's name already."""
        with self._locked():
            self._ledger.require_trainer()
            name = self._ledger.begin_commit()
            used = self._link.find(TASK, {"uses.of": name}, {"uses": 1})
            self._records.note_uses(used, self._holding(used, [name]))
            self._ledger.end_commit(name)
            return {"commit": name}

    def forget(self, step: int) -> None:
        """See the contract."""
        with self._locked():
            self._ledger.require_trainer()
            last = changes.last_use(self._ledger.held())
            last["$elemMatch"]["step"] = {"$lte": step}
            found = self._link.find(TASK, {"status": OVER, "uses": last, "ends": {"$ne": None}}, {"ends": 1})
            orders = [each["_id"] for each in found]
            for start in range(0, len(found), 100):
                self._records.remove([end["record"] for each in found[start : start + 100] for end in each["ends"]])
            self._link.update(TASK, {"_id": {"$in": orders}}, {"$set": {"ends": None, "scores": [], "reasons": []}})
            self._positions.raise_floor()

    def renew(self, leases: Iterable[Lease]) -> None:
        """See the contract."""
        wanted = list(leases)
        self._link.update(MEMBERS, {"_id": self._name}, [{"$set": {"seen": "$$NOW"}}])
        if not wanted:
            return
        each = [changes.held(lease) for lease in wanted]
        self._link.update(TASK, {"$or": each}, [{"$set": changes.until(self._seconds)}])
        still = {found["_id"] for found in self._link.find(TASK, {"$or": each}, {"_id": 1})}
        if lost := [lease.order for lease in wanted if lease.order not in still]:
            raise LeaseLostError(f"positions {lost} are another's by now, or over")

    def fail(self, lease: Lease, reason: str) -> None:
        """See the contract."""
        failed = changes.failed(self._redact(reason), self._most)
        if not self._positions.change(changes.held(lease), failed, done=(WAITING, DEAD)):
            raise _lost(lease)

    def quarantine(self, order: int, reason: str) -> None:
        """See the contract."""
        with self._locked():
            self._ledger.require_trainer()
            change = changes.set_aside(self._redact(reason))
            if not self._positions.change({"_id": order, "status": CLOSED}, change, done=(DEAD,)):
                raise LeaseLostError(f"position {order} is not closed")

    def dead(self) -> list[DeadLetter]:
        """See the contract."""
        found = self._link.find(TASK, {"status": DEAD})
        return [DeadLetter(each["_id"], tuple(each["reasons"]), len(each["ends"])) for each in found]

    def revive(self, order: int) -> None:
        """See the contract."""
        found = self._link.find(TASK, {"_id": order, "status": DEAD})
        altered = [each for each in found if not self._records.is_unchanged(each)]  # else nobody would ever get it
        anew = {"ends": [], "scores": [], "whole": False} if altered else {}
        again: changes.Update = [{"$set": {"status": WAITING, "reasons": [], **anew}}]
        if not self._positions.change({"_id": order, "status": DEAD}, again, done=(WAITING, RUNNING)):
            raise LeaseLostError(f"position {order} is not dead")
        self._records.remove([end["record"] for each in altered for end in each["ends"]])

    def announce(self, policy: Policy) -> None:
        """See the contract."""
        said = {"policy": {"$literal": asdict(policy)}, "policy_of": self._ledger.own, "policy_at": "$$NOW"}
        with self._locked():
            self._ledger.require_trainer()
            self._ledger.amend([{"$set": said}])

    def announced(self) -> AnnouncedPolicy | None:
        """See the contract."""
        (found,) = self._link.aged(LEDGER, THE_LEDGER, "policy_at")
        if "policy" not in found:
            return None
        policy = Policy(**found["policy"])
        self._count = policy.told.get(TASKS_KEY)
        return AnnouncedPolicy(policy, found["policy_of"], found["policy_at_age"])

    def join(self, role: Role, name: str, details: Mapping[str, Any] | None = None) -> None:
        """See the contract."""
        self._name = name
        said = {"role": role, "told": {"$literal": self._redact.tree(dict(details or {}))}, "seen": "$$NOW"}
        change = [{"$set": {**said, "joined": {"$ifNull": ["$joined", "$$NOW"]}}}]
        self._link.ask(lambda base: base[MEMBERS].update_one({"_id": name}, change, upsert=True))

    def leave(self) -> None:
        """See the contract."""
        self._link.ask(lambda base: base[MEMBERS].delete_one({"_id": self._name}))

    def members(self) -> list[StoreMember]:
        """See the contract."""
        holds = self._counted([{"$match": {"status": RUNNING}}, {"$sortByCount": "$holder"}])
        found = self._link.aged(MEMBERS, {}, "seen", "joined")
        members = []
        for each in found:
            ages = each["seen_age"], each["joined_age"]
            members.append(StoreMember(each["role"], each["_id"], *ages, holds.get(each["_id"], 0), each["told"]))
        return sorted(members, key=lambda each: (each.role != "trainer", each.name))

    def depths(self) -> StoreDepths:
        """See the contract."""
        with self._locked():
            self._positions.expire()
            found = self._aged({"ends": {"$ne": None}})
            names = {"waiting": WAITING, "leased": RUNNING, "closed": CLOSED, "over": OVER, "dead": DEAD}
            told = {name: found.get(state, {}).get("count", 0) for name, state in names.items()}
            kept = self._link.find(TASK, {"status": CLOSED, "uses.again": True}, {"uses": 1})
            holding = self._holding(kept)
            again = [each["_id"] for each in kept if steps_of(each, holding)]
            told["closed"] -= len(again)
            closed = self._aged({"status": CLOSED, "_id": {"$nin": again}}) if again else found
            return StoreDepths(
                **told,
                again=len(again),
                next=self._positions.first_never_had(),
                oldest_lease=found.get(RUNNING, {}).get("age"),
                oldest_closed=closed.get(CLOSED, {}).get("age"),
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock. Another thread may hold it throughout an outage: a client's request does not wait so long."""
        limit = patience_limit()
        if not self._lock.acquire(timeout=-1 if limit is None else limit):
            raise StoreUnreachableError("Another thread of this process waits for the store.", where=self._link.shown)
        try:
            yield
        finally:
            self._lock.release()

    def _take_back_late_uses(self) -> None:
        """Take back the uses of an earlier trainer, which was about to write them when this one began."""
        late = {"status": OVER, "ends": {"$ne": None}, "uses.of": {"$in": self._ledger.void}}
        if self._link.find(TASK, late, {"_id": 1}, limit=1):
            last = changes.last_use([*self._ledger.held(), self._ledger.open])
            self._link.update(TASK, {"$and": [late, {"uses": {"$not": last}}]}, changes.reopened())

    def _holding(self, positions: Iterable[Document], least: Sequence[str] = ()) -> set[str]:
        """The commits that hold, the one that is to come included, as far as uses of these positions are of one;
        `least`: those that do in any case."""
        if all(use["of"] in least for each in positions for use in each["uses"]):
            return set(least)
        self._ledger.refresh()
        return {*self._ledger.held(), self._ledger.open, *least}

    def _end(
        self, orders: Iterable[int], step: int, reason: UntrainedReason | None, again: Collection[int] = ()
    ) -> None:
        wanted = sorted(set(orders))
        stay, end = [order for order in wanted if order in again], [order for order in wanted if order not in again]
        with self._locked():
            self._ledger.require_trainer()
            name = self._ledger.open
            ending = {"_id": {"$in": end}, "status": {"$in": [RUNNING, CLOSED]}}
            staying = {"_id": {"$in": stay}, "status": CLOSED, "ends.0": {"$exists": True}}
            found = self._link.find(TASK, {"$or": [ending, staying]}, {"uses": 1})
            names = self._holding(found)
            free = {each["_id"] for each in found if max(steps_of(each, names), default=-1) < step}
            if foreign := [order for order in wanted if order not in free]:
                raise LeaseLostError(f"positions {foreign} are not leased, or a step has used them")
            ours = {"_id": {"$in": wanted}, **changes.used_by(name, step)}
            if end:
                self._link.update(TASK, ending, changes.use(name, step, reason))
            if stay:
                once = {"$nor": [changes.used_by(name, step)]}  # a try whose answer was lost may have done it
                self._link.update(TASK, {**staying, **once}, changes.use_again(name, step))
            took = {each["_id"] for each in self._link.find(TASK, ours, {"_id": 1})}
            if lost := [order for order in wanted if order not in took]:
                self._link.update(TASK, {**ours, "status": {"$in": [OVER, CLOSED]}}, changes.unused(name, step))
                raise LeaseLostError(f"positions {lost} are not leased")

    def _mend(self) -> None:
        """Let those uses hold that the ledger's head knows, and no other, and let nothing be there that is nobody's."""
        names = self._ledger.held()
        last = changes.last_use(names)
        self._link.update(TASK, {"status": {"$ne": OVER}, "uses": last}, [{"$set": {"status": OVER}}])
        back = {"status": OVER, "uses": {"$not": last}, "ends": {"$ne": None}}
        kept = {"status": CLOSED, "uses.again": True}
        self._records.note_uses(self._link.find(TASK, {"$or": [back, kept]}, {"uses": 1}), names)
        self._link.update(TASK, back, changes.reopened())
        self._link.update(TASK, changes.of_earlier_trainers(self._ledger.own), [{"$set": {"status": WAITING}}])
        self._positions.raise_floor()
        self._records.sweep()

    def _drop(self, usable: Usable) -> None:
        there = {"status": {"$in": [WAITING, CLOSED]}, "ends.0": {"$exists": True}}
        found = self._link.find(TASK, there)
        names = {each["_id"]: [end["record"] for end in each["ends"]] for each in found}
        for lease in self._records.leases(found, self._holding(found)):
            if not lease.used and not usable(lease.kept):
                anew = {"$set": {"status": WAITING, "whole": False, "ends": [], "scores": []}}
                self._link.update(TASK, {"_id": lease.order}, anew)
                self._records.remove(names[lease.order])

    def _aged(self, wanted: Document) -> dict[str, Document]:
        """For each state: the `count`, and the `age` in seconds of the one that came there first; None where none of
        them knows."""
        grouped = {"$group": {"_id": "$status", "count": {"$sum": 1}, "since": {"$min": "$since"}}}
        age = {"$divide": [{"$subtract": ["$$NOW", "$since"]}, 1000]}
        stages = [{"$match": wanted}, grouped, {"$project": {"count": 1, "age": age}}]
        return self._link.ask(lambda base: {each["_id"]: each for each in base[TASK].aggregate(stages)})

    def _counted(self, stages: list[Document]) -> dict[str, int]:
        return self._link.ask(lambda base: {each["_id"]: each["count"] for each in base[TASK].aggregate(stages)})


def _lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(f"position {lease.order} is not leased under number {lease.fence}")
