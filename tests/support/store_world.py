"""Samplers and a trainer over one shared store, in one process, with a fault at any statement and at any call.

Real: the store, its file or its server, the checkpoints. Played: the clock, the learner (which keeps what it trained
on), who is killed, stopped or refused by a full disk, and when; all by one seed. What was trained is counted from the
checkpoints, what became of each position from the ledger, by the store and past it, and what was acknowledged by those
who were told so. What happens to a database and how it is looked into is a `Ground`: of SQLite here, of MongoDB in
`mongo_world`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ajet.schema.errors import UserError
from tests.support.record_fixtures import episode
from tests.support.stores import (
    ALTERED,
    Kept,
    Lease,
    LeaseLostError,
    Policy,
    SharedStore,
    TrainerFencedError,
    open_shared,
)

REPEATS, BATCH, SAMPLERS, LEASE, AHEAD = 2, 2, 3, 60.0, 12
TIMES = 3
"""So often a group may be trained, in as many steps."""
KEEP = 3
"""Checkpoints that are kept: a damaged one falls back to the one before."""


class Killed(BaseException):
    """This process is no more."""


class Faults:
    """What happens next, and after how many statements or calls."""

    def __init__(self, draw: random.Random, happens: dict[str, tuple[float, Callable[[], None]]]) -> None:
        """`happens`: besides kills, by what it is called: how often (a kill: 2), and what is done or raised at a
        statement."""
        self.draw, self.counts = draw, Counter[str]()
        self._happens = {"kill": (2.0, _die), **happens}
        self._kind, self._after = "", 0

    def arm(self, often: float = 0.35) -> None:
        """Perhaps let something happen during what comes now."""
        self._kind, self._after = "", 0
        if self.draw.random() < often:
            shares = [share for share, _ in self._happens.values()]
            (self._kind,) = self.draw.choices(list(self._happens), shares)
            self._after = self.draw.randrange(9)

    def disarm(self) -> None:
        """Nothing happens."""
        self._kind = ""

    def point(self, *, statement: bool = False) -> None:
        """Here it may happen. Raises Killed, and what the database raises."""
        if not self._kind or (self._kind != "kill" and not statement):
            return
        self._after -= 1
        if self._after < 0:
            kind, self._kind = self._kind, ""
            self.counts[kind] += 1
            self._happens[kind][1]()


def _die() -> None:
    raise Killed


class Ground(Protocol):
    """A database for one world."""

    address: str
    """Where the store is."""

    def later(self, seconds: float) -> None:
        """Its clock goes on, or back."""
        ...

    def states(self) -> dict[int, str]:
        """The state of each position, by the database itself, in the words of `Depths`."""
        ...


class SqliteGround:
    """A file; all of the process go by `clock`."""

    def __init__(self, folder: Path, clock: list[float]) -> None:
        self._path, self._clock = folder / "store.sqlite", clock
        self.address = f"sqlite:{self._path}"

    def later(self, seconds: float) -> None:
        self._clock[0] += seconds

    def states(self) -> dict[int, str]:
        with contextlib.closing(sqlite3.connect(self._path)) as base:
            return dict(base.execute("SELECT place, state FROM positions"))

    @staticmethod
    def happens() -> dict[str, tuple[float, Callable[[], None]]]:
        """To it."""

        def full() -> None:
            raise sqlite3.OperationalError("database or disk is full")

        return {"disk full": (1.0, full)}


class Connection:
    """One to SQLite, at whose statements faults happen: before, and after, when nobody is told that it was done."""

    def __init__(self, base: sqlite3.Connection, faults: Faults) -> None:
        self._base, self._faults = base, faults

    def set_progress_handler(self, handler: Callable[[], object], steps: int) -> None:
        self._base.set_progress_handler(handler, steps)

    def execute(self, statement: str, *more: Any) -> sqlite3.Cursor:
        if statement == "ROLLBACK":
            return self._base.execute(statement)
        self._faults.point(statement=True)
        found = self._base.execute(statement, *more)
        if statement == "COMMIT":
            self._faults.point()
        return found

    def executemany(self, statement: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        self._faults.point(statement=True)
        return self._base.executemany(statement, rows)

    @property
    def in_transaction(self) -> bool:
        return self._base.in_transaction

    def close(self) -> None:
        self._base.close()


@dataclass
class Sampler:
    """Plays positions: one attempt a turn."""

    name: str
    store: SharedStore
    leases: list[Lease] = field(default_factory=list)
    made: dict[int, list[str]] = field(default_factory=dict)
    unsaid: tuple[Lease, Kept] | None = None
    """Played, and not put yet."""
    stopped_until: float = 0.0


@dataclass
class Trainer:
    """Uses closed groups, a batch a step."""

    store: SharedStore
    step: int
    trained: dict[int, list[str]]
    """The episodes of each position that was trained."""
    steps: dict[int, list[int]]
    """The steps that trained it."""
    over: list[int]
    """Positions that no step uses again."""
    discarded: list[int]
    """What no step has trained and none will."""
    batches: list[list[int]]
    """What each step trained, one after the other."""
    held: list[Lease] = field(default_factory=list)


class World:
    """Positions are without end, and played a little ahead of training."""

    def __init__(self, folder: Path, ground: Ground, seed: int, faults: Faults) -> None:
        """`folder`: of the checkpoints."""
        self.folder, self.ground, self.faults, self.draw = folder, ground, faults, random.Random(seed)
        self.address = ground.address
        self.now = 0.0
        self.acknowledged: dict[int, set[str]] = {}
        self.names = 0
        self.ghosts: list[Trainer] = []
        self.samplers: list[Sampler] = []
        faults.disarm()
        self.trainer = self._trainer()
        for _ in range(SAMPLERS):
            self.samplers.append(self._sampler())

    def turn(self) -> None:
        """Somebody does something, and something may happen meanwhile."""
        self._later(self.draw.choice([0.1, 1.0, 5.0]))
        self._outside()
        who: Any = self.draw.choice([self.trainer, *self.ghosts, *self.samplers])
        act: Callable[[Any], None] = self._train if isinstance(who, Trainer) else self._sample
        if isinstance(who, Sampler) and who.stopped_until > self.now:
            return
        self.faults.arm()
        try:
            act(who)
        except Killed:
            self._restart(who)
        except TrainerFencedError:
            assert who in self.ghosts, "the trainer that came last is fenced off"
            self.ghosts.remove(who)
        except UserError:
            pass  # it is tried again
        finally:
            self.faults.disarm()

    def calm(self) -> None:
        """Nothing happens any more, until all that was begun is over. Raises AssertionError where it never is."""
        self.ghosts.clear()
        end = 1 + max([*self.trainer.steps, *self.trainer.discarded, *self.trainer.store.begun()], default=0)
        for _ in range(40 * (end + 1)):
            self._later(1.0)
            for letter in self.trainer.store.dead():
                assert not any(why.startswith(ALTERED) for why in letter.reasons), letter
                self.trainer.store.revive(letter.order)
            for sampler in self.samplers:
                self._sample(sampler, below=end)
            self._train(self.trainer)
            depths = self.trainer.store.depths()
            if not (depths.dead or depths.again or self.trainer.store.begun()) and depths.next >= end:
                break
        left = self.trainer.store.begun()
        assert len(left) + depths.again < BATCH and not depths.dead, f"stuck: {left}, {depths}"

    def check(self) -> None:
        """None lost, none twice in a step nor more than `TIMES`: by the checkpoint, by the ledger, by who was told."""
        saved = self._checkpoints()[-1][1]
        trained = {int(order): uuids for order, uuids in saved["trained"].items()}
        assert trained == self.trainer.trained and saved["discarded"] == self.trainer.discarded
        steps = {int(order): each for order, each in saved["steps"].items()}
        batches = [(step, int(order)) for step, batch in enumerate(saved["batches"], 1) for order in batch]
        assert sorted(batches) == sorted((step, order) for order, each in steps.items() for step in each)
        assert len(set(batches)) == len(batches), "a position was trained twice in a step"
        assert max(Counter(order for _, order in batches).values(), default=0) <= TIMES
        assert set(steps) == set(trained) and set(saved["over"]) <= set(steps)
        assert {each.order: each.used for each in self.trainer.store.closed() if each.used} == {
            order: tuple(each) for order, each in steps.items() if order not in saved["over"]
        }, "a use is lost, or one that never was"
        uuids = Counter(uuid for each in trained.values() for uuid in each)
        assert set(uuids.values()) <= {1}, "an episode was trained twice"
        assert not set(trained) & set(saved["discarded"])
        assert len(saved["discarded"]) == len(set(saved["discarded"]))
        over = set(trained) | set(saved["discarded"])
        depths, begun = self.trainer.store.depths(), set(self.trainer.store.begun())
        assert over | begun == set(range(depths.next)), (over ^ begun ^ set(range(depths.next)), "a position is lost")
        assert not over & begun, "a position that was trained is played again"
        for order, told in self.acknowledged.items():
            if order in trained:
                assert told <= set(trained[order]), f"an end of position {order} is lost"
        assert all(len(each) == REPEATS for each in trained.values())
        states = {order: state for order, state in self.ground.states().items() if order >= 0}
        again = set(steps) - set(saved["over"])
        assert {order for order, state in states.items() if state != "over"} == begun | again, "by the database itself"
        assert {order for order, state in states.items() if state == "over"} <= over - again, "by the database itself"

    def close(self) -> None:
        """All let go of the store."""
        for store in (self.trainer.store, *(each.store for each in (*self.ghosts, *self.samplers))):
            store.disconnect()

    def _later(self, seconds: float) -> None:
        self.now += seconds
        self.ground.later(seconds)

    def _outside(self) -> None:
        """What happens to processes and machines, and not at a statement."""
        chance = self.draw.random()
        if chance < 0.02:
            self.faults.counts["clock"] += 1
            self._later(self.draw.choice([-7200.0, -30.0, 30.0, 7200.0]))
        elif chance < 0.05:
            self.faults.counts["stop"] += 1
            self.draw.choice(self.samplers).stopped_until = self.now + self.draw.choice([5.0, 3 * LEASE])
        elif chance < 0.06:
            self.faults.counts["second trainer"] += 1
            self.ghosts.append(self.trainer)
            self.trainer = self._trainer()
        elif chance < 0.07:
            self.faults.counts["drain"] += 1
            sampler = self.draw.choice(self.samplers)
            for lease in sampler.leases:
                with contextlib.suppress(LeaseLostError):
                    sampler.store.give_back([lease])
            self._restart(sampler)

    def _restart(self, who: Any) -> None:
        who.store.disconnect()
        self.faults.disarm()
        if isinstance(who, Sampler):
            self.samplers[self.samplers.index(who)] = self._sampler()
        elif who in self.ghosts:
            self.ghosts.remove(who)
        else:
            if self.draw.random() < 0.2 and len(self._checkpoints()) > 1:
                self.faults.counts["damaged checkpoint"] += 1
                self._checkpoints()[-1][0].unlink()
            elif self.draw.random() < 0.2 and len(self._checkpoints()) > 1:
                self.faults.counts["begun at the checkpoint before"] += 1
                self._open_as_trainer(self._checkpoints()[-2][1]["store"]).disconnect()
            self.trainer = self._trainer()

    def _sampler(self) -> Sampler:
        self.names += 1
        store = open_shared(self.address, lease_seconds=LEASE, max_attempts=4)
        store.join("sampler", f"sampler {self.names}")
        return Sampler(f"sampler {self.names}", store)

    def _trainer(self) -> Trainer:
        found = self._checkpoints()
        saved: dict[str, Any] = {name: [] for name in ("over", "discarded", "batches")}
        saved |= found[-1][1] if found else {"step": 0, "trained": {}, "steps": {}, "store": None}
        store = self._open_as_trainer(saved["store"])
        trained, steps = (
            {int(order): list(each) for order, each in saved[name].items()} for name in ("trained", "steps")
        )
        lists = (list(saved[name]) for name in ("over", "discarded", "batches"))
        return Trainer(store, saved["step"], trained, steps, *lists)

    def _open_as_trainer(self, at: Any) -> SharedStore:
        return open_shared(self.address, lease_seconds=LEASE, max_attempts=4, rolls=True, at=at)

    def _sample(self, who: Sampler, below: int | None = None) -> None:
        if below is None:
            announced = who.store.announced()
            below = AHEAD if announced is None else announced.policy.below
        if not who.leases:
            who.leases = who.store.lease(self.draw.randrange(1, 3), below=below)
            who.made = {lease.order: [one.episode.uuid for one in lease.attempts] for lease in who.leases}
            return
        try:
            self._play(who, who.leases[0])
        except LeaseLostError:
            who.leases, who.unsaid = [], None

    def _play(self, who: Sampler, lease: Lease) -> None:
        if self.draw.random() < 0.3:
            who.store.renew(who.leases)
        made = who.made[lease.order]
        if len(made) >= REPEATS:
            who.store.close(lease)
            who.leases = who.leases[1:]
            return
        if self.draw.random() < 0.02:
            who.store.fail(lease, "its tool is down")
            who.leases = who.leases[1:]
            return
        if who.unsaid is None:
            self.names += 1
            who.unsaid = (lease, Kept(episode(f"e{self.names}")))
        lease, kept = who.unsaid
        for _ in range(self.draw.choice([1, 1, 2])):  # a sampler may repeat itself
            who.store.put(lease, kept)
        self.acknowledged.setdefault(lease.order, set()).add(kept.episode.uuid)
        made.append(kept.episode.uuid)
        who.unsaid = None

    def _train(self, who: Trainer) -> None:
        if len(who.held) < BATCH:
            who.held += who.store.closed(BATCH, but={lease.order for lease in who.held})
            return
        batch, who.held = who.held[:BATCH], who.held[BATCH:]
        stale = [lease.order for lease in batch if self.draw.random() < 0.1]
        used = [lease.order for lease in batch if lease.order not in stale]
        as_known = all(list(lease.used) == who.steps.get(lease.order, []) for lease in batch)
        assert as_known or who in self.ghosts, "the ledger says that other steps have used them"
        again = [lease.order for lease in batch if len(lease.used) + 1 < TIMES and self.draw.random() < 0.5]
        try:
            who.store.use(used, who.step + 1, again=again)
            if stale:
                who.store.discard(stale, who.step + 1, "stale")
            saved = who.store.commit()
        except TrainerFencedError:
            raise
        except UserError:  # as a run does that cannot write: it ends, and is started again
            raise Killed from None
        assert who not in self.ghosts, "a trainer that was fenced off has committed"
        who.step += 1
        who.trained |= {
            lease.order: [one.episode.uuid for one in lease.attempts] for lease in batch if lease.order in used
        }
        for order in used:
            who.steps.setdefault(order, []).append(who.step)
        who.batches.append(used)
        who.over += [order for order in used if order not in again] + [order for order in stale if order in who.steps]
        who.discarded += [order for order in stale if order not in who.steps]
        self._save(who, saved)
        below = 1 + max([*who.trained, *who.discarded]) + AHEAD
        try:
            who.store.announce(Policy("run", who.step, f"/step-{who.step}", below=below))
            if len(self._checkpoints()) > KEEP:
                oldest, told = self._checkpoints()[0]
                oldest.unlink()
                who.store.forget(self._checkpoints()[0][1]["step"])
        except TrainerFencedError:
            raise
        except UserError:
            raise Killed from None

    def _save(self, who: Trainer, store: Any) -> None:
        path = self.folder / f"step-{who.step:06}.json"
        told = {name: getattr(who, name) for name in ("step", "trained", "steps", "batches", "over", "discarded")}
        told["store"] = store
        self.faults.point()
        aside = path.with_suffix(".aside")
        aside.write_text(json.dumps(told))
        self.faults.point()
        os.replace(aside, path)
        self.faults.point()

    def _checkpoints(self) -> list[tuple[Path, dict[str, Any]]]:
        return [(path, json.loads(path.read_text())) for path in sorted(self.folder.glob("step-*.json"))]
