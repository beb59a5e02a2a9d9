"""Kills do not make a run shorter-winded: what is trained with kills is as long as what is trained without.

A trainer and its players in virtual time, over the real stores: positions are leased, played for as long as their
episode is, closed, used by a step in the order in which they end, and committed; a kill loses what is under way, and
whatever no checkpoint knows. Compared are the two distributions: their means, their deciles, and the most that one
distribution function is above the other anywhere (Kolmogorov and Smirnov's distance).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import pytest

from ajet.record.resume import RecoveryCounts
from ajet.store import RunStore, Store, StoreOptions, open_shared
from ajet.store import sqlite_store as module
from ajet.store.sqlite_store import SqliteStore
from tests.support.mongod import Mongod

PLAYERS, BATCH, STEPS, SAVES = 8, 4, 60, 2
FAR = 0.05
"""Between two distribution functions, where one run must be as the other."""
State = dict[str, Any] | None
Open = Callable[[State], Store]


def duration(position: int) -> float:
    """Heavy-tailed: one in ten takes ten times as long as most."""
    draw = random.Random(position)
    return draw.uniform(0.5, 1.5) * (10 if draw.random() < 0.1 else 1)


class Run:
    """One run, killed at `kills` (virtual times)."""

    def __init__(self, opened: Open, kills: list[float], spoil: Callable[[State], State] = lambda state: state) -> None:
        self.opened, self.kills, self.spoil = opened, [*kills], spoil
        self.now, self.step = 0.0, 0
        self.rows: list[dict[str, Any]] = []
        self.state: State = None
        self.first: list[list[int]] = []
        """What each start leased first."""

    def play(self) -> list[int]:
        """Positions as they were trained."""
        while self.step < STEPS:
            self._life()
        return [position for row in self.rows for position in row["tasks"]]

    def _life(self) -> None:
        store = self.opened(self.spoil(self.state))
        self.step = self.state["step"] if self.state else 0
        self.rows = self.rows[: self.step]
        if self.state is not None:
            counted = RecoveryCounts.of(self.rows, store.begun(), step=self.step)
            if self.spoil(self.state) == self.state:
                assert (counted.skipped, counted.doubled) == (0, 0), str(counted)
        under_way: list[tuple[float, int, Any]] = []
        ended: list[int] = []
        killed = self.kills.pop(0) if self.kills else float("inf")
        leased = store.lease(PLAYERS)
        self.first.append([lease.order for lease in leased])
        while self.step < STEPS:
            for lease in leased:
                heapq.heappush(under_way, (self.now + duration(lease.order), lease.order, lease))
            over, position, lease = heapq.heappop(under_way)
            if over > killed:
                self.now = killed
                return
            self.now = over
            store.close(lease)
            ended.append(position)
            if len(ended) == BATCH:
                self._step(store, ended)
                ended = []
            leased = store.lease(1)

    def _step(self, store: Store, ended: list[int]) -> None:
        self.step += 1
        store.use(ended, self.step)
        self.rows.append({"step": self.step, "tasks": [*ended]})
        if self.step % SAVES == 0:
            self.state = {**store.commit(), "step": self.step}


def farthest(some: list[float], others: list[float]) -> float:
    """Kolmogorov and Smirnov's distance of two samples."""
    return max(
        abs(sum(each <= at for each in some) / len(some) - sum(each <= at for each in others) / len(others))
        for at in {*some, *others}
    )


@pytest.fixture(params=["run folder", "sqlite", pytest.param("mongodb", marks=pytest.mark.extra_slow)])
def opener(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Open]:
    """Each start is long after the one before, for leases of that one to be over."""
    clock, begun = [1e6], set[str]()
    monkeypatch.setattr(module.time, "time", lambda: clock[0])

    def of(name: str) -> Open:
        def opened(state: State) -> Store:
            clock[0] += 7200
            if request.param == "run folder":
                return RunStore(None, at=state)
            if request.param == "mongodb":
                mongod: Mongod = request.getfixturevalue("mongod")
                address = mongod.empty() if state is None and name not in begun else f"{mongod.uri}/ajet"
                begun.add(name)
                mongod.later(7200)
                return open_shared(address, at=state, rolls=True)
            store = SqliteStore(tmp_path / f"{name}.sqlite", StoreOptions(at=state, rolls=True))
            store.database.execute("PRAGMA synchronous=OFF")  # no machine is switched off here
            return store

        return opened

    return of


def test_what_is_trained_with_kills_is_as_long_as_what_is_trained_without(opener: Callable[[str], Open]) -> None:
    draw = random.Random(3)
    kills = sorted(draw.uniform(4, 60) for _ in range(6))
    whole, killed = Run(opener("whole"), []), Run(opener("killed"), kills)
    without, with_kills = whole.play(), killed.play()
    assert len(killed.first) == len(kills) + 1
    long, longer = ([duration(each) for each in trained] for trained in (without, with_kills))
    ratio, distance = mean(longer) / mean(long), farthest(long, longer)
    deciles = [round(b / a, 3) for a, b in zip(quantiles(long, n=10), quantiles(longer, n=10), strict=True)]
    print(f"length of {len(long)} trained episodes, with kills / without: mean {ratio:.3f}, deciles {deciles}, "
          f"farthest {distance:.3f}")  # fmt: skip
    assert 0.9 < ratio < 1.1 and all(0.9 < each < 1.1 for each in deciles)
    assert distance < FAR
    assert len(set(with_kills)) == len(with_kills) == STEPS * BATCH
    for first in killed.first[1:]:
        assert first == sorted(first), "what was longest under way comes back first"


def test_a_cursor_in_the_place_of_the_frontier_would_be_seen() -> None:
    """The defect that the number is for: what was under way is not played again."""
    draw = random.Random(3)
    kills = sorted(draw.uniform(4, 60) for _ in range(6))

    def cursor(state: State) -> State:
        return state and {**state, "unfinished": []}

    def opened(state: State) -> Store:
        return RunStore(None, at=state)

    without, with_kills = Run(opened, []).play(), Run(opened, kills, cursor).play()
    ratio = mean(map(duration, with_kills)) / mean(map(duration, without))
    skipped = RecoveryCounts.of([{"step": 1, "tasks": with_kills}], [], step=1).skipped
    distance = farthest([duration(each) for each in without], [duration(each) for each in with_kills])
    print(f"the same with a cursor: mean {ratio:.3f}, farthest {distance:.3f}")
    assert ratio < 0.9 and distance > FAR and skipped > 0, ratio
