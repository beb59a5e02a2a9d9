"""kill -9 of trainer and samplers at random moments, started again: nothing lost, nothing trained twice, counted from
the ledger and from the trained batches, each by itself."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from ajet.record import EpisodeFiles
from ajet.run.prove import prove_recorded
from tests.ajet_command import Forked, metric_rows, start
from tests.sample_fixtures import project_in

STEPS, GROUPS, REPEATS, KILLS = 12, 2, 2, 6
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.max_staleness=2", "rollout.max_env_worker=2",
]  # fmt: skip


@pytest.mark.extra_slow
@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_of_trainer_and_samplers_at_random_moments(tmp_path: Path, seed: int) -> None:
    draw, log = random.Random(seed), tmp_path / "log"
    run, store = tmp_path / "runs" / "sums", tmp_path / "store.db"
    yaml = str(project_in(tmp_path) / "sums.yaml")
    commands = {
        "trainer": ("train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal",
                    "--from-store", f"sqlite:{store}"),
        **{name: ("sample", "--conf", yaml, "--name", name, "--lease", "5", "--store", f"sqlite:{store}")
           for name in ("one", "two")},
    }  # fmt: skip

    def begun(name: str) -> Forked:
        return start(*commands[name], *SETTINGS, cwd=tmp_path, log=log)  # type: ignore[return-value]

    running = {name: begun(name) for name in commands}
    killed: Counter[str] = Counter()
    try:
        patience = time.monotonic() + 500
        for number in range(KILLS):
            target = (number + 1) * STEPS // (KILLS + 2)
            while len(metric_rows(run)) < target and running["trainer"].poll() is None:
                assert time.monotonic() < patience, log.read_text()
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.5))  # the moment, anywhere in what follows
            name = ("trainer", "one", "two")[number % 3]
            running[name].kill()
            running[name].wait()
            killed[name] += 1
            running[name] = begun(name)
        assert running["trainer"].wait(300) == 0, log.read_text()
        for name in ("one", "two"):
            assert running[name].wait(120) == 0, log.read_text()
    finally:
        for process in running.values():
            process.kill()
    assert killed == {"trainer": 2, "one": 2, "two": 2}

    # by the trained batches alone
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    recorded = [(step, e) for step in range(1, STEPS + 1) for e in EpisodeFiles(run / "episodes").read(step, "train")]
    batches = Counter((episode.order, episode.repeat) for _, episode in recorded)
    assert set(batches.values()) == {1}, "an attempt is in one batch"
    groups = {order for order, _ in batches}
    assert batches.keys() == {(order, repeat) for order in groups for repeat in range(REPEATS)}
    dropped = {order for row in rows for order in row.get("discarded", ())}
    trained = {order for row in rows for order in row["tasks"]}
    assert len(trained) == STEPS * GROUPS and trained | dropped == groups and not trained & dropped

    # by the ledger alone
    with closing(sqlite3.connect(store)) as base:
        (begun_first,) = base.execute("SELECT value FROM counts WHERE name = 'next'").fetchone()
        states = dict(base.execute("SELECT place, state FROM positions"))
        uses = Counter(place for (place,) in base.execute("SELECT place FROM uses"))
    assert set(uses.values()) <= {1}
    over = {place for place in range(begun_first) if states.get(place, "over") == "over"}
    assert over == groups, "every position is over and in a batch, or waits to be played or trained: none is lost"
    assert set(states.values()) <= {"over", "closed", "waiting", "leased"}
    report = prove_recorded(str(run), run.parent, ids_only=True)
    assert report.ok and report.held_steps == STEPS, (report.wrong_steps, report.proof.wrong[:2])
