"""A trainer over a store with damaged groups trains the healthy ones, and counts each other one by its reason."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ajet.backbone.following import FollowingBackbone
from ajet.commands.launch import launch
from ajet.config import Experiment, load_experiment
from ajet.record.live_status import read_live_status
from ajet.record.status import read_status
from ajet.schema.episode import Episode
from ajet.store import Kept, SharedStore, open_shared
from ajet.task_reader import TaskOrder
from ajet.train.parts import assemble
from ajet.train.runner import LaunchOptions
from ajet_mongo import documents
from tests.support.ajet_process import metric_rows
from tests.support.damaged_groups import ATTEMPTS, DAMAGED
from tests.support.sample_fixtures import project_in

pytestmark = pytest.mark.slow

STEPS, SIZE, REPEATS = 3, 2, 2
SAMPLER = "machine-7"
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={SIZE}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.mode=async", "trainer_common.max_staleness=null", "trainer_common.canary=null",
]  # fmt: skip
LONE = "lone episodes"
ROWS = {
    "line no JSON": "line = 'no'",
    "line of another type": "line = '[]'",
    "line a number": "line = 3",
    "arrays gone": "arrays = x'00'",
    "later schema": "line = replace(line, '\"schema\": 3', '\"schema\": 99')",
    "another word": "line = replace(line, 'hello', 'jello')",
    "policy text": "line = replace(line, '[[0, 0, 0]]', '[[0, \"a\", \"b\"]]')",
    "attempt number text": 'line = replace(line, \'"repeat": 0\', \'"repeat": "x"\')',
    "attempt of a lone episode": "alone = 1",
    "no digest": "seal = ''",
}
"""How rows are changed in the file: all are unreadable."""
RECORDS: dict[str, Callable[[Any, int], object]] = {
    "record gone": lambda base, order: base["Record"].delete_many({"task": order}),
    "calls gone": lambda base, order: base["DispatchedSamplingTask"].delete_many(_of(base, order)),
    "meta text": lambda base, order: _set(base, order, {"meta": "no"}),
    "arrays text": lambda base, order: _set(base, order, {"arrays": "no"}),
    "later schema": lambda base, order: _set(base, order, {"meta.schema": 99}),
    "another step": lambda base, order: _set(base, order, {"meta.step": 77}),
    "no digest": lambda base, order: _set(base, order, {"digest": None}),
}
"""How documents are changed in the database: all are unreadable."""


def _of(base: Any, order: int) -> dict[str, Any]:
    return {"record": {"$in": [each["_id"] for each in base["Record"].find({"task": order}, {"_id": 1})]}}


def _set(base: Any, order: int, change: dict[str, Any]) -> object:
    return base["Record"].update_many({"task": order}, {"$set": change})


@dataclass
class Scene:
    """What was put, and what came of it."""

    expected: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By position: the name of the damage, and the kind of the reason."""
    healthy: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project_in(tmp_path_factory.mktemp("project"))


def experiment_in(project: Path, name: str) -> Experiment:
    settings = [*SETTINGS, f"experiment_name={name}"]
    return load_experiment(project / "sums.yaml", backbone="local", overrides=settings, exp_dir=project / "runs")


@pytest.fixture(scope="module")
def played(project: Path) -> list[Episode]:
    """A group that was really played, with the weights that training begins with."""
    experiment = experiment_in(project, "played")
    with assemble(experiment, run_id="r", opens=FollowingBackbone) as parts:
        tasks = TaskOrder(parts.tasks("train"), seed=experiment.ajet.seed, shuffle=False)
        group = parts.rollout.play_group(0, tasks.task(0), step=1, split="train", repeats=REPEATS)
        return group.result(timeout=60).episodes


class Injector:
    """Plays for a trainer: puts healthy groups and, between them, damaged ones."""

    def __init__(self, address: str, played: list[Episode], tasks: TaskOrder, *, damages: bool) -> None:
        self._address, self._played, self._tasks, self._damages = address, played, tasks, damages
        self.scene = Scene()
        self._store: SharedStore
        self._run = ""

    def put_all(self) -> None:
        """Wait for the trainer's policy, then put."""
        self._store = open_shared(self._address)
        while (announced := self._store.announced()) is None:
            time.sleep(0.05)
        self._run = announced.policy.run
        raw = ROWS if self._address.startswith("sqlite") else RECORDS
        names = [*DAMAGED, *ATTEMPTS, LONE, *raw]
        every = max(1, len(names) // (STEPS * SIZE - 1))
        for at, name in enumerate(names):
            if at % every == 0 and len(self.scene.healthy) < STEPS * SIZE - 1:
                self._put_healthy()
            self._put_damaged(name)
        self._put_healthy()
        self._store.disconnect()

    def _attempts(self, order: int, count: int = REPEATS) -> list[Episode]:
        task = self._tasks.task(order)
        return [
            replace(
                self._played[repeat % REPEATS], uuid=f"{order}-{repeat}", repeat=repeat, order=order, task=task,
                run=self._run, group=f"group-{order}", sampler=SAMPLER,
            )
            for repeat in range(count)
        ]  # fmt: skip

    def _put_healthy(self) -> None:
        (lease,) = self._store.lease(1)
        for each in self._attempts(lease.order):
            self._store.put(lease, Kept(each, ended_by=SAMPLER))
        self._store.close(lease)
        self.scene.healthy.append(lease.order)

    def _put_damaged(self, name: str) -> None:
        (lease,) = self._store.lease(1)
        if not self._damages:
            return
        attempts = self._attempts(lease.order, ATTEMPTS.get(name, REPEATS))
        kind = "attempts"
        if name in DAMAGED:
            kind, change = DAMAGED[name]
            attempts[0] = change(attempts[0])
        if name == LONE:
            kind = "task"
        for each in attempts:
            self._store.put(lease, Kept(each, alone=name == LONE, ended_by=SAMPLER))
        if self._address.startswith("sqlite") and name in ROWS:
            kind, statement = "unreadable", f"UPDATE ends SET {ROWS[name]} WHERE place = ?"
            with closing(sqlite3.connect(self._address.removeprefix("sqlite:"), timeout=60)) as base:
                assert base.execute(statement, (lease.order,)).rowcount == REPEATS
                base.commit()
        elif name in RECORDS:
            from pymongo import MongoClient

            kind = "unreadable"
            with MongoClient(self._address) as client:
                RECORDS[name](client["ajet"], lease.order)
        self._store.close(lease)
        self.scene.expected[lease.order] = name, kind


def trained(project: Path, played: list[Episode], name: str, address: str, *, damages: bool) -> Scene:
    experiment = experiment_in(project, name)
    with assemble(experiment_in(project, "tasks"), run_id="r", opens=FollowingBackbone) as parts:
        tasks = TaskOrder(parts.tasks("train"), seed=experiment.ajet.seed, shuffle=False)
    injector = Injector(address, played, tasks, damages=damages)
    failed: list[BaseException] = []

    def put_all() -> None:
        try:
            injector.put_all()
        except BaseException as error:
            failed.append(error)
            signal.raise_signal(signal.SIGINT)  # ends the training
            raise

    putting = threading.Thread(target=put_all, daemon=True)
    putting.start()
    launch(experiment, LaunchOptions(from_store=_address(address), rehearsal=False))
    putting.join(timeout=60)
    assert not failed and not putting.is_alive()
    scene = injector.scene
    scene.rows = [row for row in metric_rows(project / "runs" / name) if "tasks" in row]
    store = open_shared(address)
    scene.reasons = {each.order: each.reasons[-1] for each in store.dead()}
    store.disconnect()
    return scene


def _address(text: str) -> Any:
    from ajet.store import Address

    return Address.of(text)


@pytest.fixture(scope="module")
def clean(project: Path, played: list[Episode], tmp_path_factory: pytest.TempPathFactory) -> Scene:
    address = f"sqlite:{tmp_path_factory.mktemp('store')}/store.db"
    return trained(project, played, "clean", address, damages=False)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mongodb", marks=pytest.mark.extra_slow)])
def test_damaged_groups_are_quarantined_and_training_goes_on(
    kind: str,
    project: Path,
    played: list[Episode],
    clean: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(documents, "read_score", lambda episode: None)  # else MongoDB's client refuses some of them
    monkeypatch.setattr("ajet_mongo.records.read_score", lambda episode: None)
    address = f"sqlite:{tmp_path}/store.db" if kind == "sqlite" else request.getfixturevalue("mongod").empty()
    scene = trained(project, played, kind, address, damages=True)
    assert len(scene.expected) >= 55
    found = {
        order: "unreadable" if reason.startswith("changed in the store") else reason.split(": ")[1]
        for order, reason in scene.reasons.items()
    }
    wrong = {name: (found.get(order), kind, scene.reasons.get(order)) for order, (name, kind) in scene.expected.items()
             if found.get(order) != kind}  # fmt: skip
    assert not wrong and found.keys() == scene.expected.keys()
    unnamed = [name for order, (name, _) in scene.expected.items() if SAMPLER not in scene.reasons[order]]
    assert set(unnamed) <= {"no attempt", "record gone"}, "the reason names the sampler"
    last = scene.rows[-1]
    kinds = Counter(kind for _, kind in scene.expected.values())
    assert last["train/quarantined"] == last["train/given_up"] == len(scene.expected)
    assert {name: last[f"train/quarantined/{name}"] for name in kinds} == kinds
    status = read_status(project / "runs" / kind)
    assert status is not None and status["depths"]["quarantined"] > 0
    assert read_live_status(project / "runs" / kind).state == "finished"
    assert [row["tasks"] for row in scene.rows] == [
        scene.healthy[at : at + SIZE] for at in range(0, STEPS * SIZE, SIZE)
    ]
    for name in ("loss", "grad_norm", "train/reward", "train/trained_tokens"):
        assert [row[name] for row in scene.rows] == [row[name] for row in clean.rows], name
