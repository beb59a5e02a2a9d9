"""Torch's threads follow the load of other processes, unless the settings fix their number."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from ajet.backbone.local.backbone import LocalBackbone, make_sample
from ajet.config import Experiment
from ajet.engine import thread_count
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.thread_count import adjust_threads, choose_count, choose_threads, read_busy_seconds
from ajet.record import processors
from ajet.schema.batch import TrainingBatch

CPU = torch.device("cpu")
Times = namedtuple("Times", ["user", "nice", "idle", "iowait", "guest"])


class Machine:
    """Two cores, and a clock that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.busy = 0.0
        """Cores that other processes keep busy, at normal priority."""
        self.nice = 0.0
        self._seconds = Times(0.0, 0.0, 0.0, 0.0, 0.0)

    def wait(self, seconds: float) -> None:
        idle = 2 * seconds - (self.busy + self.nice) * seconds
        used = (self.busy * seconds, self.nice * seconds, idle / 2, idle / 2, 0.0)
        self._seconds = Times(*(before + more for before, more in zip(self._seconds, used, strict=True)))
        self.now += seconds

    def read_times(self, percpu: bool) -> list[Times]:
        assert percpu
        half = Times(*(value / 2 for value in self._seconds))
        return [half, half, Times(self.now, 0.0, 0.0, 0.0, 0.0)]  # the third core is not allowed


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made, before = Machine(), torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processors, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 3)
    monkeypatch.setattr(psutil, "cpu_times", made.read_times)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    clock = SimpleNamespace(monotonic=lambda: made.now, sleep=made.wait, process_time=lambda: 0.0)
    monkeypatch.setattr(thread_count, "time", clock)
    yield made
    choose_threads(before, CPU)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    found: list[str] = []
    number = logger.add(lambda message: found.append(str(message).strip()), format="{message}", level="INFO")
    yield found
    logger.remove(number)


@pytest.mark.parametrize(
    ("busy", "current", "count"),
    [(0.0, 1, 4), (0.3, 1, 3), (0.3, 4, 4), (0.5, 4, 3), (1.0, 4, 3), (2.7, 4, 1), (4.0, 4, 1), (9.0, 1, 1)],
)  # fmt: skip
def test_a_busy_core_loses_its_thread(busy: float, current: int, count: int) -> None:
    assert choose_count(4, busy, 4, current) == count


@given(st.integers(1, 256), st.floats(0, 300), st.integers(1, 256), st.data())
def test_the_count_fits_the_load(cores: int, busy: float, limit: int, data: st.DataObject) -> None:
    current = data.draw(st.integers(1, limit))
    count = choose_count(cores, busy, limit, current)
    assert 1 <= count <= limit
    assert count == 1 or count + busy <= cores + thread_count.TAKEN
    assert count == limit or count + 1 + busy > cores + thread_count.NOISE
    assert choose_count(cores, busy, limit, count) == count, "an unchanged load changes nothing"
    assert choose_count(cores, busy + 1, limit, current) <= count


def test_threads_follow_the_load(machine: Machine) -> None:
    assert choose_threads("auto", CPU) == 2
    counts = []
    for busy in (0.0, 1.0, 1.0, 0.0):
        machine.busy = busy
        machine.wait(1.0)
        adjust_threads()
        counts.append(torch.get_num_threads())
    assert counts == [2, 1, 1, 2]


def test_a_run_begun_beside_a_busy_process_speeds_up(machine: Machine) -> None:
    machine.busy = 1.0
    assert choose_threads("auto", CPU) == 1
    machine.busy = 0.0
    machine.wait(1.0)
    adjust_threads()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("yields", "counts"), [(True, [2, 2, 2, 2]), (False, [2, 1, 1, 2])])
def test_processes_of_lower_priority_are_tried(machine: Machine, yields: bool, counts: list[int]) -> None:
    """They take a free core, and yield it only within the same session and container."""
    machine.nice = 1.0
    found = [choose_threads("auto", CPU)]
    for seconds in (1.0, 1.0, thread_count.TRIAL_SECONDS):
        machine.nice = 0.1 if yields and torch.get_num_threads() == 2 else 1.0
        machine.wait(seconds)
        adjust_threads()
        found.append(torch.get_num_threads())
    assert found == counts


def test_a_process_of_low_priority_counts_all(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda *_: 19)
    machine.nice = 1.0
    assert choose_threads("auto", CPU) == 1


def test_a_quota_is_free_beside_busy_cores(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("200000 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert choose_threads("auto", CPU) == 2, "one of three cores is busy, and the quota grants the time of two"


def test_an_environment_of_zero_threads_is_ignored(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert choose_threads("auto", CPU) == 2


@pytest.mark.parametrize("fixed", ["deterministic", "configured", "environment"])
def test_fixed_threads_ignore_the_load(machine: Machine, monkeypatch: pytest.MonkeyPatch, fixed: str) -> None:
    machine.busy = 2.0
    if fixed == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(2 if fixed == "configured" else "auto", CPU, deterministic=fixed == "deterministic") == 2
    for _ in range(3):
        machine.wait(1.0)
        adjust_threads()
        assert torch.get_num_threads() == 2


def test_a_change_is_logged_once(machine: Machine, lines: list[str]) -> None:
    choose_threads("auto", CPU)
    machine.busy = 1.0
    for _ in range(40):
        machine.wait(0.5)
        adjust_threads()
    assert lines == [
        "2 threads on cpu (2 cores, 0.0 of them busy with other processes)",
        "now 1 thread on cpu (2 cores, 1.0 of them busy with other processes)",
    ]


def test_each_computing_thread_follows(machine: Machine) -> None:
    """Torch stores the number for each thread that computes."""
    choose_threads("auto", CPU)
    machine.busy = 1.0
    machine.wait(1.0)
    adjust_threads()
    found: list[int] = []

    def compute() -> None:
        torch.set_num_threads(2)
        adjust_threads()
        found.append(torch.get_num_threads())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert found == [1]


def test_layers_adjust_threads_forward_and_backward(machine: Machine) -> None:
    choose_threads("auto", CPU)
    state = torch.ones(2, requires_grad=True) * 2
    adjust_threads(state)
    machine.busy = 1.0
    machine.wait(1.0)
    state.sum().backward()
    assert torch.get_num_threads() == 1


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_follows_the_load_unless_deterministic(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deterministic: bool
) -> None:
    ajet = {
        "model": {"path": "embedded:tiny-tools", "dtype": "float32"},
        "rollout": {"max_model_len": 64, "max_num_seqs": 4, "deterministic": deterministic},
        "trainer_common": {"device": "cpu", "canary": None, "use_kl_loss": False},
    }
    settings = {"ajet": {"backbone": "local", **ajet}}
    backbone = LocalBackbone(Experiment.from_dict(settings, base=tmp_path, exp_dir=tmp_path))
    engine: Any = backbone.engine
    chosen: list[tuple[str, int]] = []
    set_count = torch.set_num_threads

    def record(count: int) -> None:
        chosen.append((threading.current_thread().name, count))
        set_count(count)

    monkeypatch.setattr(torch, "set_num_threads", record)
    machine.busy = 1.0
    machine.wait(1.0)

    async def reply() -> None:
        async for _ in engine.generate(TokenRequest(np.arange(3, 9, dtype=np.int32), Sampling(2), DrawKey(1, 2, 0, 0))):
            pass

    try:
        asyncio.run(reply())
        backbone.update(TrainingBatch(1, [make_sample(8, 50, seed=0)]))
    finally:
        backbone.close()
    assert chosen == ([] if deterministic else [("ajet-engine", 1), ("MainThread", 1)])
    assert torch.get_num_threads() == (2 if deterministic else 1)


def test_other_processes_use_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the real counters: this process's own time is not counted."""
    before, after = sum(read_busy_seconds()), sum(read_busy_seconds())
    assert before > 0 and after - before < 60
