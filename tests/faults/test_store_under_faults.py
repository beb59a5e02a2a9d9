"""Thousands of faults at every statement and call of samplers and a trainer on one store: none lost, none twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.store_world import Connection, Faults, SqliteGround, World
from tests.support.stores import mongo_operations_fail, sqlite_connections_fail

TURNS = 400
SERVE_TURNS = 300
MONGO_FAULTS = 400


@pytest.mark.parametrize(
    "least", [pytest.param(75, marks=pytest.mark.slow), pytest.param(6_000, marks=pytest.mark.extra_slow)]
)
def test_nothing_is_lost_and_nothing_is_trained_twice(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seed, counts, trained = [0.0], 0, Counter[str](), Counter[str]()
    monkeypatch.setattr(time, "time", lambda: clock[0])
    while counts.total() < least:
        seed += 1
        faults = Faults(random.Random(seed), SqliteGround.happens())
        clock[0] = 1_000_000.0
        with sqlite_connections_fail(lambda base, faults=faults: Connection(base, faults)):
            trained += played(tmp_path / str(seed), lambda folder: SqliteGround(folder, clock), seed, faults)
        counts += faults.counts
    assert set(counts) >= {"kill", "disk full", "stop", "clock"} and trained["uses"] > trained["groups"] > seed
    report(counts, seed, trained)


@pytest.mark.parametrize(
    "least", [pytest.param(60, marks=pytest.mark.slow), pytest.param(4_000, marks=pytest.mark.extra_slow)]
)
def test_the_same_of_what_ajet_serve_acknowledged(least: int, tmp_path: Path) -> None:
    from tests.support.faulty_disk import Kind, ServeFaults, faulty
    from tests.support.serve_injector import ServedWorld

    seed, counts, done = 0, Counter[str](), Counter[str]()
    while counts.total() < least:
        seed += 1
        folder, clock = tmp_path / str(seed), [1_000_000.0, 0.0]
        folder.mkdir()
        kind: Kind = "files" if seed % 2 else "sqlite"
        faults = ServeFaults(random.Random(seed), kind)
        world = ServedWorld(folder, kind, seed, faults, clock)
        with faulty(folder / "pending", faults, clock):
            asyncio.run(world.turns(SERVE_TURNS))
        counts += faults.counts
        done += world.done()
    calls = {"call fails", "call breaks off", "call hangs", "weights came late", "weights came within a reply"}
    assert set(counts) >= {"kill", "disk full"} and set(counts) & calls and done["trained"] > done["steps"] > seed
    print(f"{counts.total()} faults ({dict(counts)}) over {seed} seeds: {dict(done)}, 0 lost, 0 twice, 0 stuck")


@pytest.mark.extra_slow
def test_the_same_over_a_server_whose_connections_are_cut_and_which_is_killed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    mongod = request.getfixturevalue("mongod")
    from tests.support.mongo_world import MongoGround, Way

    armed = list[Faults]()
    seed, counts, trained = 0, Counter[str](), Counter[str]()
    wanted = {"kill", "connections cut", "mongod killed", "mongod stopped", "stop", "clock"}
    with Way(mongod.port) as way, mongo_operations_fail(lambda: armed[-1].point(statement=True)):
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
