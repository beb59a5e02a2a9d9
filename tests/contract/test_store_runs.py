"""A run over a store that others may share: it goes on where it was, and the store says what became of each task."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.cli import launcher
from ajet.config import load_experiment
from ajet.record import RunDirectory
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.store import Address, Kept, Store, open_shared, store_address
from ajet.store.sqlite_store import SqliteStore
from ajet.task_reader import TaskOrder
from ajet.train.session import open_store
from ajet.train.sources.store import SamplerPool, StoreSource
from ajet_ray.tickets import open_verl_store
from tests.support.mongod import Mongod
from tests.support.record_fixtures import episode, failed

AGENT = """
async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    asked = [{"role": "user", "content": task.main_query}]
    reply = await client.chat.completions.create(model="ajet", messages=asked)
    return float(sum(map(ord, reply.choices[0].message.content or "")))
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools", dtype: float32}
  task_reader: {type: random_dummy}
  data: {train_batch_size: 1, max_prompt_length: 96, max_response_length: 32}
  rollout:
    user_workflow: agent.py->agent
    num_repeat: 2
    max_response_length_in_one_turn: 6
    max_model_len: 128
    compute_madness_checklist: []
  store: {type: sqlite}
  trainer_common: {total_training_steps: 1, save_freq: 1, threads: 1, logger: [], use_kl_loss: false}
"""


@pytest.mark.extra_slow
def test_a_run_goes_on_over_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(YAML)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            launcher.main([*arguments])
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    conf = ("--conf", "x.yaml", "--backbone", "local")
    for steps in (1, 2):
        code, said = run(*conf, f"trainer_common.total_training_steps={steps}")
        assert code == 0, said
    file = tmp_path / "launcher_record" / "x" / "store.sqlite"
    with closing(sqlite3.connect(file)) as base:
        assert set(base.execute("SELECT state FROM positions")) == {("over",)}
        assert base.execute("SELECT value FROM counts WHERE name = 'next'").fetchall() == [(2,)]
    code, said = run("doctor", "--store", f"sqlite:{file}")
    assert code == 0 and " over; " in said, said
    file.rename(file.with_suffix(".gone"))
    code, said = run(*conf, "trainer_common.total_training_steps=3")
    assert code == 2 and "was made with another store" in said and "Traceback" not in said, said
    code, said = run(*conf, "store.uri=redis://h")
    assert code == 2 and "redis:" in said, said


@pytest.mark.slow
def test_a_run_opens_the_store_that_its_yaml_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both backbones that train; a checkpoint of another store, and the store of another run, are refused."""
    (tmp_path / "x.yaml").write_text(YAML)
    tasks = TaskOrder([Task(task_id="1", main_query="?")], seed=0)

    def opened(name: str, backbone: str = "local", *overrides: str) -> Store:
        experiment = load_experiment(
            tmp_path / "x.yaml", backbone=backbone, exp_dir=tmp_path / name, overrides=overrides
        )
        with RunDirectory.open(experiment, root=experiment.root) as run:
            assert store_address(experiment, run.path) is not None
            return open_store(run, tasks) if backbone == "local" else open_verl_store(run, tasks, sessions=2)

    store = opened("one")
    assert isinstance(store, SqliteStore) and (tmp_path / "one" / "x" / "store.sqlite").is_file()
    assert isinstance(opened("verl", "verl"), SqliteStore)
    shared = f"store.uri=sqlite:{tmp_path}/shared.sqlite"
    assert isinstance(opened("two", "local", shared, "store.max_attempts=2"), SqliteStore)
    with pytest.raises(UserError, match="belongs to another run"):
        opened("three", "local", shared)
    with pytest.raises(UserError, match="not an address of a store of type sqlite"):
        opened("four", "local", "store.uri=mongodb://h/db")


def test_a_store_in_mongodb_is_named_as_the_run(tmp_path: Path, mongod: Mongod) -> None:
    mongod.empty()
    (tmp_path / "ajet.yaml").write_text(YAML.replace("{type: sqlite}", f'{{type: mongodb, uri: "{mongod.uri}"}}'))
    experiment = load_experiment(tmp_path / "ajet.yaml", backbone="local", exp_dir=tmp_path / "runs")
    with RunDirectory.open(experiment, root=experiment.root) as run:
        store = open_store(run, TaskOrder([Task(task_id="1", main_query="?")], seed=0))
        address = store_address(experiment, run.path)
    assert address is not None and address.shown == f"{mongod.uri}/ajet"
    assert [lease.order for lease in store.lease(1)] == [0] and open_shared(address).depths().leased == 1


def test_what_samplers_play_for_a_run_is_that_run_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--from-store`: no other run takes its groups; those that failed as a whole, and attempts of a policy that no
    checkpoint has, are no part of a new try."""
    (tmp_path / "x.yaml").write_text(YAML)
    monkeypatch.setattr("ajet.engine.models.fingerprint_weights", lambda settings, base: "w")
    tasks = TaskOrder([Task(task_id="1", main_query="?")], seed=0)
    address = Address.of("shared.sqlite", base=tmp_path)

    def opened(name: str) -> Any:
        experiment = load_experiment(tmp_path / "x.yaml", backbone="local", exp_dir=tmp_path / name)
        tokenizer = SimpleNamespace(get_vocab=dict, chat_template="")
        parts: Any = SimpleNamespace(experiment=experiment, backbone=SimpleNamespace(tokenizer=tokenizer))
        with RunDirectory.open(experiment, root=experiment.root) as run:
            return StoreSource(parts, SamplerPool(address)).open_store(run, tasks, None)

    opened("one")
    sampler = open_shared(address)
    played = ((True, True), (True, False), (True,), (False,))
    for lease, failing in zip(sampler.lease(4), played, strict=True):
        ends = [(failed if fails else episode)(f"{lease.order}-{at}") for at, fails in enumerate(failing)]
        if lease.order == 1:
            ends = [replace(end, calls=[], timelines=[]) for end in ends]  # of the policy that training began with
        ends = [replace(end, untrained=Counter()) for end in ends]  # counts that do not add up would be refused
        sampler.put(lease, *map(Kept, ends))
        if len(failing) == 2:
            sampler.close(lease)
        else:
            sampler.give_back([lease])
    again = opened("one")
    assert [lease.order for lease in again.closed()] == [1]
    assert [(lease.order, len(lease.attempts)) for lease in again.lease(3)] == [(0, 0), (2, 1), (3, 0)]
    with pytest.raises(UserError, match="belongs to another run"):
        opened("two")
