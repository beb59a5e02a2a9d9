"""kill -9 of `ajet serve` at random moments, started again at its address, and a stop (SIGSTOP), while clients play:
what was acknowledged is trained once or left over with a reason, counted from what clients were told, from the trained
batches and from the ledger, each by itself. Twenty kills and two stops."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.client import Client, EpisodeLost, Refused
from ajet.record import EpisodeFiles
from tests.support.ajet_process import metric_rows, start
from tests.support.ports import free_port
from tests.support.runs import count_tasks, prove_run

KEY = "the-admin-key-of-these-tests"
STEPS, GROUPS, REPEATS, KILLS, CLIENTS = 16, 2, 2, 10, 4
"""Between the last kill and the last step there are more than the batches that may wait for the trainer."""
STOPPED_AFTER = 5
"""Kills after which it is stopped for a while, too."""
SETTINGS = [
    "model.path=embedded:tiny-tools", "trainer_common.threads=1", "trainer_common.use_kl_loss=false",
    "rollout.max_response_length_in_one_turn=8", "rollout.max_model_len=128", "trainer_common.optim.lr=1e-4",
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.save_freq=2", "task_reader.type=random_dummy",
]  # fmt: skip


class Clients:
    """Threads that play the server's tasks, whatever becomes of it, and note what they were told."""

    def __init__(self, url: str, run: Path) -> None:
        self.run, self.most = run, 0
        """Steps after which nobody ends an episode for now: the kills are to come before the run is over."""
        self.asked: set[str] = set()
        """Episodes whose end was said."""
        self.told: dict[str, dict[str, Any]] = {}
        """Those whose end was acknowledged."""
        self.lost = 0
        self.problem: Exception | None = None
        self._over = threading.Event()
        self._client = Client(url, KEY, patience=600)
        self._threads = [threading.Thread(target=self._play, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """The server is gone for good."""
        self._over.set()
        self._client.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _play(self) -> None:
        while not self._over.is_set():
            try:
                self._one()
            except EpisodeLost:
                self.lost += 1
            except Exception as problem:  # noqa: BLE001 - a thread's, for the test
                if not self._over.is_set() and not (isinstance(problem, Refused) and problem.code == "closing"):
                    self.problem = problem
                return

    def _one(self) -> None:
        episode = self._client.begin()
        asked = {"model": episode.model, "messages": [{"role": "user", "content": episode.question}]}
        headers = {"authorization": f"Bearer {episode.api_key}"}
        with suppress(httpx.TransportError):  # it was killed: what it says of the end tells what became of the episode
            httpx.post(f"{episode.base_url}/chat/completions", json=asked, headers=headers, timeout=120)
        while len(metric_rows(self.run)) >= self.most and not self._over.is_set():
            time.sleep(0.02)
        self.asked.add(episode.name)
        self.told[episode.name] = episode.finish(float(episode.repeat))


@pytest.mark.extra_slow
@pytest.mark.parametrize(("store", "seed"), [("run", 1), ("sqlite", 2)])
def test_kill_9_of_the_server_at_random_moments(store: str, seed: int, tmp_path: Path) -> None:
    draw, log, port = random.Random(seed), tmp_path / "log", free_port()
    run = tmp_path / "launcher_record" / "serve"
    command = ["serve", "--backbone", "local", "--port", str(port), *SETTINGS]
    command += ["store.type=sqlite"] if store == "sqlite" else []

    def begun() -> Any:
        return start(*command, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)

    server = begun()
    clients = Clients(f"http://127.0.0.1:{port}", run)
    patience = time.monotonic() + 900
    try:
        for number in range(KILLS):
            clients.most = number + 1
            while len(metric_rows(run)) <= number and server.poll() is None:
                assert clients.problem is None and time.monotonic() < patience, (clients.problem, log.read_text())
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.5))  # the moment, anywhere in what follows
            assert server.poll() is None, log.read_text()
            if number == STOPPED_AFTER:
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(2)
                os.kill(server.pid, signal.SIGCONT)
            server.kill()
            server.wait()
            server = begun()
        clients.most = STEPS + 1
        while server.poll() is None:
            assert clients.problem is None and time.monotonic() < patience, (clients.problem, log.read_text())
            time.sleep(0.05)
        assert server.wait(60) == 0, log.read_text()
    finally:
        server.kill()
        clients.end()

    # by the trained batches, against what clients were told
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    recorded = [each for step in range(1, STEPS + 1) for each in EpisodeFiles(run / "episodes").recorded(step)]
    times = Counter(episode.uuid for episode, _ in recorded)
    assert set(times.values()) == {1}, "none is recorded twice"
    trained = {episode.uuid: outcome.step for episode, outcome in recorded if outcome.step is not None}
    left = {episode.uuid: outcome.discarded for episode, outcome in recorded if outcome.step is None}
    whole = {name for name, told in clients.told.items() if told["status"] == "completed"}
    assert len(whole) == len(clients.told) and whole <= times.keys(), "what was acknowledged is not lost"
    assert trained.keys() <= clients.asked, "nothing is trained that no client ended"
    assert all(left.values()), "what is left over says why"
    assert len(trained) == STEPS * GROUPS * REPEATS and set(Counter(trained.values()).values()) == {GROUPS * REPEATS}
    assert count_tasks(rows) == (0, 0, ())
    assert prove_run(run, "--ids-only")["ok"]

    # by the ledger alone
    if store == "sqlite":
        with closing(sqlite3.connect(run / "store.sqlite")) as base:
            uses = Counter(place for (place,) in base.execute("SELECT place FROM uses WHERE reason IS NULL"))
            states = Counter(state for (state,) in base.execute("SELECT state FROM positions WHERE place >= 0"))
        assert set(uses.values()) <= {1} and not states.keys() & {"leased", "dead"}, (uses, states)
    print(f"{store}: {KILLS} killed, {len(trained)} trained once, {len(left)} left over, {clients.lost} lost to kills")
