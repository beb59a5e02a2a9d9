"""A store that is out of reach is waited for: nothing is lost or trained twice, and in the end it is exit 75."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import Popen

import pytest
from loguru import logger

from ajet.schema.errors import UserError
from ajet.store import Kept, SharedStore, StoreUnreachableError, open_shared, outage, sqlite_store
from ajet.store.outage import limited_patience
from ajet.train.interrupts import Interrupts, Preempted
from tests.support.ajet_process import metric_rows, start
from tests.support.mongod import MongoClient, Mongod, server_file
from tests.support.record_fixtures import episode
from tests.support.sample_fixtures import HELD_FROM, project_in

pytestmark = pytest.mark.slow

GROUPS, STEPS, TIMEOUT, LEASE = 2, 4, 8, 3
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", "rollout.num_repeat=2",
    "trainer_common.mode=async", "trainer_common.max_staleness=null", "trainer_common.canary=null",
    f"store.unreachable_timeout={TIMEOUT}",
]  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Mongod]:
    """A server of this test alone: it is stopped and killed."""
    if MongoClient is None or server_file() is None:
        pytest.skip("pymongo or the package of the server is not installed")
    (tmp_path / "base").mkdir()
    made = Mongod(tmp_path / "base")
    yield made
    made.kill()


@contextmanager
def logged() -> Iterator[list[str]]:
    """The warnings of the store's outage."""
    lines = list[str]()
    sink = logger.add(lambda line: lines.append(str(line)), format="{message}", level="WARNING", filter=outage.__name__)
    try:
        yield lines
    finally:
        logger.remove(sink)


def until(holds: Callable[[], bool], log: Path, seconds: float = 120) -> None:
    patience = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < patience, log.read_text()
        time.sleep(0.1)


@pytest.mark.extra_slow
def test_trainer_and_sampler_outlast_a_server(server: Mongod, tmp_path: Path) -> None:
    project, address = project_in(tmp_path), f"{server.uri}/ajet"
    log, run, hold = project / "log", project / "runs" / "sums", project / "hold"
    hold.touch()

    def begin() -> list[Popen[str]]:
        yaml = str(project / "sums.yaml")
        train = ("train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal")
        sample = ("sample", "--conf", yaml, "--name", "one", "--lease", str(LEASE), "--store", address)
        trainer = start(*train, "--from-store", address, *SETTINGS, cwd=project, log=log)
        return [trainer, start(*sample, *SETTINGS, cwd=project, log=log)]

    processes = begin()
    try:
        until(lambda: len(metric_rows(run)) == HELD_FROM // GROUPS, log)
        time.sleep(1)  # the other groups have begun, and their attempts are held up
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(LEASE + 2)
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(2)
        server.kill()
        time.sleep(LEASE + 2)
        server.start()
        until(lambda: log.read_text().count("can be reached again after") >= 2, log)
        time.sleep(2)
        assert all(process.poll() is None for process in processes), log.read_text()
        store = open_shared(address)
        assert store.depths().leased and not store.dead()
        store.disconnect()
        with MongoClient(server.uri) as client:
            assert not client["ajet"]["Task"].count_documents({"reasons.0": {"$exists": True}}), "no lease ended"
        server.kill()
        assert [process.wait(4 * TIMEOUT) for process in processes] == [75, 75], log.read_text()
        text = log.read_text()
        assert "Traceback" not in text and text.count("error  ") == 2 and "status" not in text
        server.start()
        hold.unlink()
        processes = begin()
        assert [process.wait(180) for process in processes] == [0, 0], log.read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    trained = [order for row in metric_rows(run) if "tasks" in row for order in row["tasks"]]
    assert sorted(trained) == list(range(STEPS * GROUPS)), "each once"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "LOGGED_AFTER", 0.1)
    monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT", 0.01)


def locked(path: Path) -> sqlite3.Connection:
    """A connection that keeps everyone else from the file."""
    base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    base.execute("BEGIN IMMEDIATE")
    return base


def fill(store: SharedStore) -> None:
    (lease,) = store.lease(1)
    store.put(lease, Kept(episode("a")))
    store.close(lease)


def test_a_locked_file_is_waited_for(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "store.db"
    store = open_shared(f"sqlite:{path}", unreachable_timeout=20)
    with closing(locked(path)) as other, logged() as lines:
        threading.Timer(0.8, lambda: other.execute("ROLLBACK")).start()
        fill(store)
    assert len(lines) == 2, "away, and back"
    assert [lease.order for lease in store.closed()] == [0]
    store.disconnect()


def test_a_file_that_stays_locked_ends_all_waits(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "store.db"
    store = open_shared(f"sqlite:{path}", unreachable_timeout=0.5)
    with closing(locked(path)), logged() as lines:
        began = time.monotonic()
        with pytest.raises(StoreUnreachableError) as away:
            fill(store)
        first = time.monotonic()
        for _ in range(5):
            with pytest.raises(StoreUnreachableError):
                store.leave()
        assert first - began < 2 and time.monotonic() - first < 0.4, "who gave up waits no more"
    assert str(path) in away.value.where and len(lines) == 1
    fill(store)
    assert store.depths().closed == 1, "it may come back all the same"
    store.disconnect()


def interrupt_after(seconds: float, number: signal.Signals) -> None:
    threading.Timer(seconds, lambda: signal.pthread_kill(threading.main_thread().ident or 0, number)).start()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_interrupt_ends_a_wait(tmp_path: Path, number: signal.Signals, whole: bool) -> None:
    path = tmp_path / "store.db"
    store = open_shared(f"sqlite:{path}", unreachable_timeout=60)
    interrupts = Interrupts()
    with closing(locked(path)), interrupts.install():
        began = time.monotonic()
        interrupt_after(0.3, number)
        with pytest.raises(KeyboardInterrupt) as raised, interrupts.defer(ends_step=whole):
            fill(store)
        assert isinstance(raised.value, Preempted) == (number == signal.SIGTERM)
        with pytest.raises(StoreUnreachableError):  # what its end asks of the store is tried once
            store.leave()
        assert time.monotonic() - began < 10
    fill(store)
    assert store.depths().closed == 1
    store.disconnect()


def test_sigterm_that_waits_ends_a_wait_after_its_grace(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "store.db"
    store = open_shared(f"sqlite:{path}", unreachable_timeout=60)
    interrupts = Interrupts()
    with closing(locked(path)), interrupts.install():
        began = time.monotonic()
        interrupt_after(0.1, signal.SIGTERM)
        with pytest.raises(Preempted), interrupts.grace_period(1.0), interrupts.defer(ends_step=False):
            fill(store)
        assert 1 <= time.monotonic() - began < 10
    store.disconnect()


def test_a_clients_request_is_not_kept_waiting(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "store.db"
    store = open_shared(f"sqlite:{path}", unreachable_timeout=60)
    with closing(locked(path)):
        began = time.monotonic()
        with limited_patience(0.2), pytest.raises(StoreUnreachableError):
            store.depths()
        assert time.monotonic() - began < 1
    fill(store)
    store.disconnect()


def test_what_is_repeated_gets_all_of_its_arguments(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "store.db"
    store = open_shared(f"sqlite:{path}", rolls=True, run="r", unreachable_timeout=20)
    fill(store)
    leases = store.lease(2)
    with closing(locked(path)) as other:
        threading.Timer(0.3, lambda: other.execute("ROLLBACK")).start()
        store.renew(each for each in leases)
        store.give_back(each for each in leases)
        store.use((order for order in [0]), 1)
    depths = store.depths()
    assert (depths.waiting, depths.over, depths.leased) == (2, 1, 0)
    store.disconnect()


def test_leases_outlive_an_outage(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "store.db"
    player = open_shared(f"sqlite:{path}", lease_seconds=0.5)
    trainer = open_shared(f"sqlite:{path}", rolls=True, run="r", lease_seconds=2.0)
    leases = player.lease(1)
    with closing(locked(path)) as other:
        threading.Timer(0.8, lambda: other.execute("ROLLBACK")).start()
        assert trainer.depths().leased == 1
    player.renew(leases)
    assert trainer.depths().leased == 1
    time.sleep(2.6)
    assert trainer.depths().waiting == 1, "one that stays silent loses it"
    player.disconnect()
    trainer.disconnect()


def test_a_server_that_never_was_there_is_a_users_error(tmp_path: Path) -> None:
    pytest.importorskip("pymongo")
    from ajet_mongo.mongo_store import MongoStore

    with pytest.raises(UserError):
        MongoStore("mongodb://127.0.0.1:1/", "run", patience=0.1)
