"""Thousands of faults at every statement and call of samplers and a trainer on one store: none lost, none twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ajet.store import sqlite_store
from tests.store_injector import Connection, Faults, World

TURNS = 400


@pytest.mark.parametrize(
    "least", [pytest.param(150, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.extra_slow)]
)
def test_nothing_is_lost_and_nothing_is_trained_twice(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seed, counts, trained = [0.0], 0, Counter[str](), 0
    monkeypatch.setattr(sqlite_store.time, "time", lambda: clock[0])
    connect = sqlite_store.connect
    while counts.total() < least:
        seed += 1
        faults = Faults(random.Random(seed))
        monkeypatch.setattr(sqlite_store, "connect", lambda path, faults=faults: Connection(connect(path), faults))
        clock[0] = 1_000_000.0
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(folder, clock, seed, faults)
        for _ in range(TURNS):
            world.turn()
        world.calm()
        world.check()
        counts += faults.counts
        trained += len(world.trainer.trained)
    assert set(counts) >= {"kill", "disk full", "stop", "clock"} and trained > seed
    print(f"{counts.total()} faults ({dict(counts)}) over {seed} seeds: {trained} groups trained, 0 lost, 0 twice")
