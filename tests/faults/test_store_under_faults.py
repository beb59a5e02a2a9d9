"""Thousands of faults at every statement and call of samplers and a trainer on one store: none lost, none twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ajet.store import sqlite_store
from tests.store_injector import Connection, Faults, SqliteGround, World

TURNS = 400
MONGO_FAULTS = 400


@pytest.mark.parametrize(
    "least", [pytest.param(150, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.extra_slow)]
)
def test_nothing_is_lost_and_nothing_is_trained_twice(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seed, counts, trained = [0.0], 0, Counter[str](), Counter[str]()
    monkeypatch.setattr(sqlite_store.time, "time", lambda: clock[0])
    connect = sqlite_store.connect
    while counts.total() < least:
        seed += 1
        faults = Faults(random.Random(seed), SqliteGround.happens())
        monkeypatch.setattr(sqlite_store, "connect", lambda path, faults=faults: Connection(connect(path), faults))
        clock[0] = 1_000_000.0
        trained += played(tmp_path / str(seed), lambda folder: SqliteGround(folder, clock), seed, faults)
        counts += faults.counts
    assert set(counts) >= {"kill", "disk full", "stop", "clock"} and trained["uses"] > trained["groups"] > seed
    report(counts, seed, trained)


@pytest.mark.extra_slow
def test_the_same_over_a_server_whose_connections_are_cut_and_which_is_killed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mongod = request.getfixturevalue("mongod")
    from ajet.store.mongo import connection, mongo_store
    from tests.mongo_injector import MongoGround, Way

    monkeypatch.setattr(mongo_store, "EXPIRES_EVERY", 0.0)
    asked, armed = connection.Connection._asked, list[Faults]()

    def with_faults(self: Any, operation: Any, base: Any) -> Any:
        def one(base: Any) -> Any:
            armed[-1].point(statement=True)
            answer = operation(base)
            armed[-1].point(statement=True)
            return answer

        return asked(self, one, base)

    monkeypatch.setattr(connection.Connection, "_asked", with_faults)
    seed, counts, trained = 0, Counter[str](), Counter[str]()
    wanted = {"kill", "connections cut", "mongod killed", "mongod stopped", "stop", "clock"}
    with Way(mongod.port) as way:
        while counts.total() < MONGO_FAULTS or not wanted <= set(counts):  # what is drawn depends on how it went
            seed += 1
            ground = MongoGround(mongod, way, random.Random(-seed))
            armed.append(Faults(random.Random(seed), ground.happens()))
            try:
                trained += played(tmp_path / str(seed), lambda _, ground=ground: ground, seed, armed[-1])
            finally:
                ground.close()
            counts += armed[-1].counts
    assert trained["uses"] > trained["groups"] > seed
    report(counts, seed, trained)


def played(folder: Path, ground: Any, seed: int, faults: Faults) -> Counter[str]:
    """One world to its end. Answers how many groups were trained, and how many times in all."""
    folder.mkdir()
    world = World(folder, ground(folder), seed, faults)
    for _ in range(TURNS):
        world.turn()
    world.calm()
    world.check()
    world.close()
    steps = world.trainer.steps.values()
    return Counter(groups=len(steps), uses=sum(map(len, steps)))


def report(counts: Counter[str], seeds: int, trained: Counter[str]) -> None:
    done = f"{trained['groups']} groups trained in {trained['uses']} uses, 0 lost, 0 twice in a step"
    print(f"{counts.total()} faults ({dict(counts)}) over {seeds} seeds: {done}")
