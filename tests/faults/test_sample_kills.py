"""kill -9 of trainer, samplers, the store's server and the server that samplers sample from at random moments, started
again, and a stop (SIGSTOP) of each for longer than a lease: nothing lost, nothing trained twice, nothing stuck, counted
from the ledger and from the trained batches, each by itself. Eighty kills and fourteen stops in all."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from ajet.record import EpisodeFiles
from tests.support.mongod import Mongod
from tests.support.runs import Forked, metric_rows, prove_run, start
from tests.support.samplers import project_in
from tests.support.sglang_server import SglangProcess
from tests.support.stores import open_shared

STEPS, GROUPS, REPEATS, KILLS = 24, 2, 2, 20
TIMES = "trainer_common.algorithm.max_trained_count"
LAST, HELD_AT = 14, 16
"""The step at which the last one falls, if the run is no faster; the step at which the trainer waits for the rest."""
LEASE = 5
"""Seconds: a stop is longer, so that what was held is played by another, and whoever goes on finds it lost."""
STOPPED_AFTER = {4: "one", 9: "trainer", 14: "two", 17: "server"}
"""Who is stopped for a while after so many kills; a server only where there is one."""
ORDER = ("trainer", "one", "two", "one", "two")
"""Whom the kills hit, in turn; a server is one more: that of MongoDB, or the engine's."""
ENGINE = ["model.dtype=float32", "rollout.breaker.window=2"]
"""Where samplers share a server: it computes in float32, and few attempts tell that it is away."""
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.max_staleness=2", "rollout.max_env_worker=2",
]  # fmt: skip


@dataclass
class Told:
    """What the database itself says."""

    begun: int
    """Positions that anybody ever had."""
    states: dict[int, str]
    uses: Counter[int]


def by_sqlite(path: Path) -> Told:
    with closing(sqlite3.connect(path)) as base:
        (begun,) = base.execute("SELECT value FROM counts WHERE name = 'next'").fetchone()
        states = dict(base.execute("SELECT place, state FROM positions"))
        return Told(begun, states, Counter(place for (place,) in base.execute("SELECT place FROM uses")))


def by_mongodb(server: Mongod) -> Told:
    from pymongo import MongoClient

    with MongoClient(server.uri) as client:
        base = client["ajet"]
        found = list(base["Task"].find())
        ledger = base["ajet_ledger"].find_one()
        assert ledger is not None
    had = [each for each in found if each["status"] not in ("made", "free")]
    begun = max([ledger["floor"], *(each["_id"] + 1 for each in had)])
    uses = Counter({each["_id"]: len(each["uses"]) for each in had})
    return Told(begun, {each["_id"]: each["status"] for each in found}, uses)


@pytest.mark.extra_slow
@pytest.mark.parametrize(
    ("kind", "seed", "times"), [("sqlite", 1, 1), ("sqlite", 2, 2), ("mongodb", 3, 2), ("engine", 4, 1)]
)
def test_kill_9_of_trainer_and_samplers_at_random_moments(
    kind: str, seed: int, times: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    draw, log = random.Random(seed), tmp_path / "log"
    run, server = tmp_path / "runs" / "sums", None
    order, address = list(ORDER), f"sqlite:{tmp_path}/store.db"
    settings, engine = [*SETTINGS, f"{TIMES}={times}"], list[str]()
    if kind == "mongodb":
        server = request.getfixturevalue("mongod")
        order, address = ["server", *ORDER], server.empty()
    elif kind == "engine":
        server = SglangProcess()
        request.addfinalizer(server.kill)
        order, settings, engine = ["server", *ORDER], [*settings, *ENGINE], ["--engine", server.url]
    yaml = str(project_in(tmp_path) / "sums.yaml")
    commands = {
        "trainer": ("train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal",
                    "--from-store", address),
        **{name: ("sample", "--conf", yaml, "--name", name, "--lease", str(LEASE), "--store", address, *engine)
           for name in ("one", "two")},
    }  # fmt: skip
    ledger = open_shared(address)

    def begun(name: str) -> Forked:
        return start(*commands[name], *settings, cwd=tmp_path, log=log)  # type: ignore[return-value]

    def wait_for(steps: int) -> None:
        while len(metric_rows(run)) < steps and running["trainer"].poll() is None:
            assert time.monotonic() < patience, log.read_text()
            for letter in ledger.dead():  # so often was whoever played it killed
                ledger.revive(letter.order)
            time.sleep(0.05)

    running = {name: begun(name) for name in commands}
    killed, stopped = Counter[str](), Counter[str]()

    def pause(seconds: float) -> None:
        """While others go on; but a run that would be over before its kills are has its trainer stand still."""
        until = time.monotonic() + seconds
        while True:
            if len(metric_rows(run)) >= HELD_AT and running["trainer"].poll() is None:
                os.kill(running["trainer"].pid, signal.SIGSTOP)
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(0.05, left))

    def stop(name: str) -> None:
        if name == "server" and server is None:
            return
        process = server if name == "server" else running[name]
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        pause(LEASE + 1.5)
        os.kill(process.pid, signal.SIGCONT)
        stopped[name] += 1

    try:
        patience = time.monotonic() + 900
        for number in range(KILLS):
            wait_for((number + 1) * LAST // KILLS)
            pause(draw.uniform(0, 0.5))  # the moment, anywhere in what follows
            if number in STOPPED_AFTER:
                stop(STOPPED_AFTER[number])
            name = order[number % len(order)]
            killed[name] += 1
            if name == "server":
                assert server is not None
                server.kill()
                server.start()
                continue
            assert running[name].poll() is None, log.read_text()
            running[name].kill()
            running[name].wait()
            running[name] = begun(name)
        os.kill(running["trainer"].pid, signal.SIGCONT)
        wait_for(STEPS)
        assert running["trainer"].wait(300) == 0, log.read_text()
        for name in ("one", "two"):
            assert running[name].wait(120) == 0, log.read_text()
    finally:
        for process in running.values():
            process.kill()
    assert "error  " not in log.read_text(), "whoever samples from a server waits for it, as it begins, too"
    assert killed.total() == KILLS and stopped.total() == len(STOPPED_AFTER) - (server is None)

    # by the trained batches alone
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    recorded = [(step, e) for step in range(1, STEPS + 1) for e in EpisodeFiles(run / "episodes").read(step, "train")]
    batches = Counter((step, episode.order, episode.repeat) for step, episode in recorded)
    assert set(batches.values()) == {1}, "an attempt is in a batch once"
    used = {(step, order) for step, order, _ in batches}
    groups = {order for _, order in used}
    assert batches.keys() == {(*use, repeat) for use in used for repeat in range(REPEATS)}
    assert max(Counter(order for _, order in used).values()) <= times
    again = [order for row in rows for order in row.get("again", ())]
    dropped = {order for row in rows for order in row.get("discarded", ())}
    trained = {order for row in rows for order in row["tasks"]}
    assert sum(len(row["tasks"]) for row in rows) == len(trained) == STEPS * GROUPS - len(again)
    assert trained | dropped == groups and not trained & dropped and set(again) <= trained
    assert len(used) == STEPS * GROUPS + len(dropped)

    # by the ledger alone
    told = by_mongodb(server) if isinstance(server, Mongod) else by_sqlite(tmp_path / "store.db")
    assert set(told.uses.values()) <= {*range(times + 1)}
    names = {"running": "leased", "completed": "closed"}
    states = {place: names.get(state, state) for place, state in told.states.items()}
    waiting = {lease.order: list(lease.used) for lease in ledger.closed() if lease.used}
    assert waiting == {order: sorted(step for step, each in used if each == order) for order in waiting}
    over = {place for place in range(told.begun) if states.get(place, "over") == "over"}
    assert over | waiting.keys() == groups and not over & waiting.keys(), (
        "every position is over and in a batch, or waits to be played or trained: none is lost"
    )
    assert set(states.values()) <= {"over", "closed", "waiting", "leased", "made", "free"}
    report = prove_run(run, "--ids-only")
    assert report["ok"] and report["held_steps"] == STEPS, (report["wrong_steps"], report["wrong"][:2])
    done = f"{len(trained)} groups trained in {len(trained) + len(again)} uses, {len(dropped)} discarded"
    print(f"{kind}: {dict(killed)} killed, {dict(stopped)} stopped: {done}, 0 lost, 0 twice in a step, 0 stuck")
