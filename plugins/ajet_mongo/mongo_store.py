"""MongoStore: the store that processes on any number of machines share, in a MongoDB database.

A position is a task's place in the training order. It is closed once its group of episodes is complete, and over once
no step will use it any more. A use says that a training step used or discarded the group. Invariant: no change needs
two documents at once, since a single server has no transactions. Dependent writes are ordered: an episode's documents
are written before its position refers to them, and unreferenced documents do not exist for readers. A use names the
next commit (set of uses between two checkpoints) and becomes valid when the ledger's head is that commit. A kill
between two operations therefore leaves an earlier state, or a state repaired by the next trainer (`_mend_state`).
`positions` guarantees that one process at a time leases a position, and that no forgotten position is leased again.
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
from ajet_mongo.connection import MongoConnection
from ajet_mongo.documents import Document, describe_task
from ajet_mongo.ledger import Ledger
from ajet_mongo.positions import MongoPositions
from ajet_mongo.records import MAX_TRIES, EpisodeRecords, list_steps
from ajet_mongo.schema import LEDGER, MEMBERS, TASK, THE_LEDGER


class MongoStore:
    """Leases tasks to samplers and passes their groups to the trainer, through one MongoDB database."""

    def __init__(
        self,
        uri: str,
        database: str,
        opener: StoreOptions | None = None,
        *,
        login: tuple[str, str] | None = None,
        patience: float | None = None,
    ) -> None:
        """Open the store. A trainer also takes it over, and undoes uses after its resumed checkpoint.

        Args:
            opener: role of this process and its settings for leases; None for a process that does not train.
            login: user and password, or None.
            patience: seconds for which operations are retried while the server is unreachable, or None for the
                defaults.

        Raises:
            UserError: the server is unreachable, or the store does not fit the run.
        """
        options = opener or StoreOptions()
        patience_option = {} if patience is None else {"patience": patience}
        later_patience = options.unreachable_timeout if patience is None else patience
        self.link = MongoConnection(uri, database, login, later_patience, **patience_option)
        self._lease_seconds = options.lease_seconds
        self._max_attempts = options.max_attempts
        self._redact = options.redact or Redactor({})
        self.records = EpisodeRecords(self.link, self._redact)
        self._lock = threading.RLock()
        self._name = f"process {os.getpid()}"
        self._epoch_task_count: int | None = None
        """Number of tasks of an epoch, once the trainer has announced it."""
        self._ledger = Ledger(self.link)
        self.positions = MongoPositions(self.link, self._ledger, self._lease_seconds, options.max_attempts)
        if options.rolls:  # this process is the trainer
            self._ledger.take_over(options.at, options.run)
            if options.settings:
                self._ledger.keep_settings(options.settings)
            self._mend_state()
            if options.usable is not None:
                self._drop_unusable(options.usable)
        self.link.outage.patience = later_patience  # an open store waits longer for the server than the first contact

    def disconnect(self) -> None:
        """Close the connection to the server."""
        self.link.close()

    def lease(self, count: int, *, below: int | None = None) -> list[Lease]:
        """Lease up to `count` positions in the training order of tasks, each with the episodes that it has already.

        Positions returned by other processes come first, then positions that were never leased.

        Args:
            below: first position that may not be leased for the first time, or None without a limit.
        """
        with self._hold_lock():
            self.positions.prepare_claim()
            leases: list[Lease] = []
            while len(leases) < count and (
                claimed := self.positions.claim_many(self._name, count - len(leases), below)
            ):
                leases += self.records.build_leases(claimed)  # leaves out positions with altered episodes
            return leases

    def bring(self) -> Lease:
        """Lease a new position for a client's own task. Its number is negative: it is outside the training order."""
        with self._hold_lock():
            self.positions.prepare_claim()
            number = self._ledger.add_position()
            # No document has the state "new", so the claim creates the document.
            (lease,) = self.records.build_leases(
                [self.positions.claim(self._name, {"_id": -number, "status": "new"}, upsert=True)]
            )
            return lease

    def lease_kept(self) -> list[Lease]:
        """Lease all task positions that no process leases and that have some of their group's episodes."""
        with self._hold_lock():
            self.positions.prepare_claim()
            claimed = []
            while task := self.positions.claim(self._name, {"status": WAITING, "ends.0": {"$exists": True}}):
                claimed.append(task)
            return self.records.build_leases(claimed)

    def put(self, lease: Lease, *entries: Kept) -> None:
        """Write episodes of a leased task position: first their documents, then the position's references to them.

        An episode that the position has already is not added a second time.

        Raises:
            LeaseLostError: the lease is not valid any more, and no reference was added.
            StoreDownError: the server loses documents repeatedly.
        """
        if not entries:
            return
        ends = self.records.build_ends(entries)
        task_fields = describe_task(entries[0].episode, self._redact, self._epoch_task_count)
        for attempt_number in range(MAX_TRIES):
            presence_check = self.records.write_episodes(lease, entries, ends, is_acknowledged=attempt_number > 0)
            change = changes.build_put(lease, ends, task_fields, self._lease_seconds)
            position = self.positions.name_records(lease, presence_check, change)
            is_held = position.get("status") == RUNNING and position.get("fence") == lease.fence
            record_by_uuid = {end["uuid"]: end["record"] for end in position.get("ends") or ()}
            own_records = [end["record"] for end in ends if record_by_uuid.get(end["uuid"]) == end["record"]]
            # Done if references were added, the lease is lost, or an earlier put stored the episodes. Otherwise the
            # server has lost documents in a restart, and the loop writes them once more.
            if own_records or not is_held or all(end["uuid"] in record_by_uuid for end in ends):
                self.records.remove([end["record"] for end in ends if end["record"] not in own_records])
                if not own_records and not is_held:
                    raise _make_lost_error(lease)
                return
        raise self.records.make_loss_error()

    def close(self, lease: Lease) -> None:
        """Mark a leased task position's group as complete. Raises LeaseLostError if the lease is not valid any more."""
        if not self.positions.change(
            changes.match_lease(lease),
            [{"$set": {"status": CLOSED, "whole": True, "since": "$$NOW"}}],
            done=(CLOSED, OVER),
        ):
            raise _make_lost_error(lease)

    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """Return positions with a complete group that steps may still use, in training order.

        Args:
            count: maximum number of positions, or None for all.
            but: positions to leave out.
        """
        with self._hold_lock():
            # An earlier trainer may have written uses after this trainer's start. Their groups are closed again.
            if self._ledger.own:
                self._take_back_late_uses()
            query = {"status": CLOSED, "_id": {"$nin": list(but)}}
            tasks = self.link.find(TASK, query, limit=count or 0)
            return self.records.build_leases(tasks, self._find_holding_commits(tasks))

    def begun(self) -> list[int]:
        """Return the positions of the training order that were leased and never used or discarded."""
        query = {"status": {"$in": [WAITING, RUNNING, CLOSED]}, "_id": {"$gte": 0}}
        tasks = self.link.find(TASK, query, {"_id": 1, "uses": 1})
        names = self._find_holding_commits(tasks)
        return [task["_id"] for task in tasks if not list_steps(task, names)]

    def use(
        self, orders: Iterable[int], step: int, *, again: Collection[int] = (), advantages: Mapping[str, float] = NONE
    ) -> None:
        """Record that a training step used the groups at some task positions. The next `commit` makes this valid.

        Args:
            orders: the positions.
            again: those of the positions whose groups a later step may use, too.
            advantages: mean advantage by episode uuid, written into the database for other readers.

        Raises:
            LeaseLostError: a position is neither leased nor closed, or was used by this or a later step.
            TrainerFencedError: this process is not the store's trainer.
        """
        order_list = list(orders)
        self._end_positions(order_list, step, None, again)
        if advantages:
            tasks = self.link.find(TASK, {"_id": {"$in": order_list}}, {"ends": 1})
            ends = [end for task in tasks for end in task["ends"] or ()]
            advantage_by_record = {end["record"]: advantages[end["uuid"]] for end in ends if end["uuid"] in advantages}
            self.records.note_advantages(advantage_by_record, step)

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """End task positions whose groups no further step trains on. The next `commit` makes this valid.

        Args:
            orders: the positions.
            step: training step that records the discard.
            reason: why the groups are not trained on.

        Raises:
            LeaseLostError: a position is neither leased nor closed, or was used by this or a later step.
            TrainerFencedError: this process is not the store's trainer.
        """
        self._end_positions(orders, step, reason)

    def give_back(self, leases: Iterable[Lease]) -> None:
        """End leases of incomplete groups, so that any process can lease the task positions. Stored episodes stay.

        Raises:
            LeaseLostError: a lease is not valid any more.
        """
        for lease in leases:
            if not self.positions.change(changes.match_lease(lease), [{"$set": {"status": WAITING}}], done=(WAITING,)):
                raise _make_lost_error(lease)

    def commit(self) -> dict[str, Any]:
        """Make all uses of groups since the last checkpoint valid, and return the store's state for the next one.

        A trainer that resumes from the checkpoint opens the store in this state. Raises TrainerFencedError if this
        process is not the store's trainer.
        """
        with self._hold_lock():
            self._ledger.require_trainer()
            name = self._ledger.begin_commit()
            # After a kill before `end_commit` the earlier commit is still the latest valid one.
            tasks = self.link.find(TASK, {"uses.of": name}, {"uses": 1})
            self.records.note_uses(tasks, self._find_holding_commits(tasks, [name]))
            self._ledger.end_commit(name)
            return {"commit": name}

    def forget(self, step: int) -> None:
        """Delete the episodes of finished tasks whose groups a training step used last at or before a given step.

        Args:
            step: step of the oldest checkpoint that the run may still resume from.
        """
        with self._hold_lock():
            self._ledger.require_trainer()
            old_last_use = changes.match_last_use(self._ledger.list_held_commits())
            old_last_use["$elemMatch"]["step"] = {"$lte": step}
            tasks = self.link.find(TASK, {"status": OVER, "uses": old_last_use, "ends": {"$ne": None}}, {"ends": 1})
            orders = [task["_id"] for task in tasks]
            for start in range(0, len(tasks), 100):
                self.records.remove([end["record"] for task in tasks[start : start + 100] for end in task["ends"]])
            self.link.update(TASK, {"_id": {"$in": orders}}, {"$set": {"ends": None, "scores": [], "reasons": []}})
            self.positions.raise_floor()

    def renew(self, leases: Iterable[Lease]) -> None:
        """Write this process's heartbeat, and extend its leases that are still valid.

        Raises:
            LeaseLostError: some leases are not valid any more. The others were extended.
        """
        lease_list = list(leases)
        self.link.update(MEMBERS, {"_id": self._name}, [{"$set": {"seen": "$$NOW"}}])
        if not lease_list:
            return
        filters = [changes.match_lease(lease) for lease in lease_list]
        self.link.update(TASK, {"$or": filters}, [{"$set": changes.build_deadline(self._lease_seconds)}])
        valid_orders = {task["_id"] for task in self.link.find(TASK, {"$or": filters}, {"_id": 1})}
        if lost := [lease.order for lease in lease_list if lease.order not in valid_orders]:
            raise LeaseLostError(f"positions {lost} are leased by another process, or finished")

    def fail(self, lease: Lease, reason: str) -> None:
        """Record a failed attempt at a task position, and end the lease.

        The position can then be leased again, or is given up ("dead") after `max_attempts` failures.

        Raises:
            LeaseLostError: the lease is not valid any more.
        """
        failed = changes.record_failure(self._redact(reason), self._max_attempts)
        if not self.positions.change(changes.match_lease(lease), failed, done=(WAITING, DEAD)):
            raise _make_lost_error(lease)

    def quarantine(self, order: int, reason: str) -> None:
        """Give up a task position with a complete group that must not be trained on. Its episodes stay in the database.

        Raises:
            LeaseLostError: the position has no complete group.
            TrainerFencedError: this process is not the store's trainer.
        """
        with self._hold_lock():
            self._ledger.require_trainer()
            change = changes.mark_dead(self._redact(reason))
            if not self.positions.change({"_id": order, "status": CLOSED}, change, done=(DEAD,)):
                raise LeaseLostError(f"position {order} has no complete group")

    def dead(self) -> list[DeadLetter]:
        """Return the task positions that are not leased any more because their attempts failed too often, in order."""
        tasks = self.link.find(TASK, {"status": DEAD})
        return [DeadLetter(task["_id"], tuple(task["reasons"]), len(task["ends"])) for task in tasks]

    def revive(self, order: int) -> None:
        """Make a task position that was given up available to leases, without its recorded failures.

        If one of its episodes was altered in the database, all its episodes are removed. Raises LeaseLostError if the
        position was not given up.
        """
        tasks = self.link.find(TASK, {"_id": order, "status": DEAD})
        # A lease of a position with altered episodes would fail each time.
        altered = [task for task in tasks if not self.records.is_unchanged(task)]
        reset_fields = {"ends": [], "scores": [], "whole": False} if altered else {}
        change: changes.Update = [{"$set": {"status": WAITING, "reasons": [], **reset_fields}}]
        # `done`: states after this call's own change, if the answer to it was lost and it is tried again.
        if not self.positions.change({"_id": order, "status": DEAD}, change, done=(WAITING, RUNNING)):
            raise LeaseLostError(f"position {order} has not been given up, so it cannot be revived")
        self.records.remove([end["record"] for task in altered for end in task["ends"]])

    def announce(self, policy: Policy) -> None:
        """Publish the trainer's policy to samplers. Raises TrainerFencedError if this process is not the trainer."""
        change = {"policy": {"$literal": asdict(policy)}, "policy_of": self._ledger.own, "policy_at": "$$NOW"}
        with self._hold_lock():
            self._ledger.require_trainer()
            self._ledger.amend([{"$set": change}])

    def announced(self) -> AnnouncedPolicy | None:
        """Return the policy that the trainer announced last to samplers, or None before the first."""
        (ledger,) = self.link.find_with_ages(LEDGER, THE_LEDGER, "policy_at")
        if "policy" not in ledger:
            return None
        policy = Policy(**ledger["policy"])
        self._epoch_task_count = policy.told.get(TASKS_KEY)
        return AnnouncedPolicy(policy, ledger["policy_of"], ledger["policy_at_age"])

    def join(self, role: Role, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Register this process under a name, or write its heartbeat if it is registered.

        Later leases of the process carry the name.

        Args:
            name: unique name of the process.
            details: JSON values for other processes, stored without secrets.
        """
        self._name = name
        member = {"role": role, "told": {"$literal": self._redact.tree(dict(details or {}))}, "seen": "$$NOW"}
        change = [{"$set": {**member, "joined": {"$ifNull": ["$joined", "$$NOW"]}}}]
        self.link.run_durable(lambda base: base[MEMBERS].update_one({"_id": name}, change, upsert=True))

    def leave(self) -> None:
        """Remove this process from the registered processes. Its leases stay until they expire."""
        self.link.run_durable(lambda base: base[MEMBERS].delete_one({"_id": self._name}))

    def members(self) -> list[StoreMember]:
        """Return all registered processes, trainers first, then by name, whether or not their heartbeat is recent."""
        lease_counts = self._count_groups([{"$match": {"status": RUNNING}}, {"$sortByCount": "$holder"}])
        documents = self.link.find_with_ages(MEMBERS, {}, "seen", "joined")
        members = []
        for document in documents:
            ages = document["seen_age"], document["joined_age"]
            members.append(
                StoreMember(
                    document["role"], document["_id"], *ages, lease_counts.get(document["_id"], 0), document["told"]
                )
            )
        return sorted(members, key=lambda member: (member.role != "trainer", member.name))

    def depths(self) -> StoreDepths:
        """Return the number of task positions in each state, after ending expired leases.

        Closed positions that a step has used and that stay for reuse are counted separately, as `again`.
        """
        with self._hold_lock():
            self.positions.expire()
            states = self._count_states({"ends": {"$ne": None}})  # `forget` sets `ends` to null
            names = {"waiting": WAITING, "leased": RUNNING, "closed": CLOSED, "over": OVER, "dead": DEAD}
            counts = {name: states.get(state, {}).get("count", 0) for name, state in names.items()}
            reused = self.link.find(TASK, {"status": CLOSED, "uses.again": True}, {"uses": 1})
            commits = self._find_holding_commits(reused)
            reusable = [position["_id"] for position in reused if list_steps(position, commits)]
            counts["closed"] -= len(reusable)
            closed = self._count_states({"status": CLOSED, "_id": {"$nin": reusable}}) if reusable else states
            return StoreDepths(
                **counts,
                again=len(reusable),
                next=self.positions.find_first_unclaimed(),
                oldest_lease=states.get(RUNNING, {}).get("age"),
                oldest_closed=closed.get(CLOSED, {}).get("age"),
            )

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the store's lock while the block runs.

        During an outage another thread may hold the lock long. The wait then ends at the caller's `patience_limit`.
        """
        limit = patience_limit()
        if not self._lock.acquire(timeout=-1 if limit is None else limit):
            raise StoreUnreachableError(
                "Another thread of this process is waiting for the store.", where=self.link.shown
            )
        try:
            yield
        finally:
            self._lock.release()

    def _take_back_late_uses(self) -> None:
        """Undo the uses that an earlier trainer, still running, wrote after this trainer had taken over."""
        late = {"status": OVER, "ends": {"$ne": None}, "uses.of": {"$in": self._ledger.void}}
        if self.link.find(TASK, late, {"_id": 1}, limit=1):
            valid_last_use = changes.match_last_use([*self._ledger.list_held_commits(), self._ledger.open])
            self.link.update(TASK, {"$and": [late, {"uses": {"$not": valid_last_use}}]}, changes.reopen_position())

    def _find_holding_commits(self, positions: Iterable[Document], least: Sequence[str] = ()) -> set[str]:
        """Return the names of the commits whose uses count for these task positions, the next commit included.

        A use says that a training step used the position's group. A commit is the set of uses between two checkpoints.

        Args:
            positions: documents of positions with the field `uses`.
            least: commits that always count. If the positions' uses refer to no others, only these are returned.
        """
        # Most positions have no use: then the commits need not be read from the database.
        if all(use["of"] in least for position in positions for use in position["uses"]):
            return set(least)
        self._ledger.refresh()
        return {*self._ledger.list_held_commits(), self._ledger.open, *least}

    def _end_positions(
        self, orders: Iterable[int], step: int, reason: UntrainedReason | None, again: Collection[int] = ()
    ) -> None:
        """Record a step's use of the groups at some task positions. If a position cannot be used, none is.

        Args:
            orders: the positions.
            reason: why the groups are discarded, or None if the step trained on them.
            again: those of the positions that stay closed, so that a later step may use them, too.

        Raises:
            LeaseLostError: a position is neither leased nor closed, or was used by this or a later step.
            TrainerFencedError: this process is not the store's trainer.
        """
        order_list = sorted(set(orders))
        reusable_orders, ending_orders = (
            [order for order in order_list if order in again],
            [order for order in order_list if order not in again],
        )
        with self._hold_lock():
            self._ledger.require_trainer()
            name = self._ledger.open
            match_ending = {"_id": {"$in": ending_orders}, "status": {"$in": [RUNNING, CLOSED]}}
            match_reusable = {"_id": {"$in": reusable_orders}, "status": CLOSED, "ends.0": {"$exists": True}}
            tasks = self.link.find(TASK, {"$or": [match_ending, match_reusable]}, {"uses": 1})
            names = self._find_holding_commits(tasks)
            usable_orders = {task["_id"] for task in tasks if max(list_steps(task, names), default=-1) < step}
            if unusable_orders := [order for order in order_list if order not in usable_orders]:
                raise LeaseLostError(
                    f"step {step} cannot use the groups at the positions {unusable_orders}: their leases expired, or a "
                    "step has used them already"
                )
            own_uses = {"_id": {"$in": order_list}, **changes.match_use(name, step)}
            if ending_orders:
                self.link.update(TASK, match_ending, changes.build_use(name, step, reason))
            if reusable_orders:
                # A try whose answer was lost may have recorded the use.
                without_use = {"$nor": [changes.match_use(name, step)]}
                self.link.update(TASK, {**match_reusable, **without_use}, changes.build_reuse(name, step))
            used_orders = {task["_id"] for task in self.link.find(TASK, own_uses, {"_id": 1})}
            # Another process may have leased positions since they were checked: then undo the use of the others.
            if lost := [order for order in order_list if order not in used_orders]:
                self.link.update(TASK, {**own_uses, "status": {"$in": [OVER, CLOSED]}}, changes.undo_use(name, step))
                raise LeaseLostError(f"this process has no valid leases of the positions {lost} any more")

    def _mend_state(self) -> None:
        """Restore the state of the resumed checkpoint, and remove documents that no task position refers to.

        Uses of groups by steps after the checkpoint are undone, and leases of earlier trainers end.
        """
        names = self._ledger.list_held_commits()
        valid_last_use = changes.match_last_use(names)
        self.link.update(TASK, {"status": {"$ne": OVER}, "uses": valid_last_use}, [{"$set": {"status": OVER}}])
        wrongly_over = {"status": OVER, "uses": {"$not": valid_last_use}, "ends": {"$ne": None}}
        reused = {"status": CLOSED, "uses.again": True}
        self.records.note_uses(self.link.find(TASK, {"$or": [wrongly_over, reused]}, {"uses": 1}), names)
        self.link.update(TASK, wrongly_over, changes.reopen_position())
        self.link.update(TASK, changes.match_earlier_trainers(self._ledger.own), [{"$set": {"status": WAITING}}])
        self.positions.raise_floor()
        self.records.remove_unnamed()

    def _drop_unusable(self, usable: Usable) -> None:
        """Remove the stored episodes that the trainer cannot use, so that their task positions are played again.

        Groups that a step has used stay.

        Args:
            usable: returns True for the episodes of a position that the trainer can use.
        """
        query = {"status": {"$in": [WAITING, CLOSED]}, "ends.0": {"$exists": True}}
        tasks = self.link.find(TASK, query)
        records_by_order = {task["_id"]: [end["record"] for end in task["ends"]] for task in tasks}
        for lease in self.records.build_leases(tasks, self._find_holding_commits(tasks)):
            if not lease.used and not usable(lease.attempts):
                reset = {"$set": {"status": WAITING, "whole": False, "ends": [], "scores": []}}
                self.link.update(TASK, {"_id": lease.order}, reset)
                self.records.remove(records_by_order[lease.order])

    def _count_states(self, wanted: Document) -> dict[str, Document]:
        """Count the task positions that match a filter, by state.

        Returns:
            For each state the number of positions (`count`), and the age of the oldest in seconds (`age`, or None).
        """
        grouped = {"$group": {"_id": "$status", "count": {"$sum": 1}, "since": {"$min": "$since"}}}
        age = {"$divide": [{"$subtract": ["$$NOW", "$since"]}, 1000]}
        stages = [{"$match": wanted}, grouped, {"$project": {"count": 1, "age": age}}]
        return self.link.run_durable(lambda base: {state["_id"]: state for state in base[TASK].aggregate(stages)})

    def _count_groups(self, stages: list[Document]) -> dict[str, int]:
        """Return the counts by key of an aggregation over task positions that ends with `$sortByCount`."""
        return self.link.run_durable(lambda base: {row["_id"]: row["count"] for row in base[TASK].aggregate(stages)})


def _make_lost_error(lease: Lease) -> LeaseLostError:
    """Return the error for a lease that has expired or was ended, so that its holder may change nothing any more."""
    return LeaseLostError(f"the lease of position {lease.order} is not valid any more (lease number {lease.fence})")
