"""What a launch of bench_verl.py says of each rollout: the clock that sits in verl's processes, and its reading."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest

from tests.benchmarks.test_bench_limits import loaded


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """The module that Python imports by itself in verl's processes, and its file."""
    monkeypatch.delenv("VERL_BENCH_CLOCK", raising=False)
    module = loaded("verl_peer/clock/sitecustomize", monkeypatch)
    module.FILE = str(tmp_path / "clock.jsonl")
    ticks = iter(range(1000))
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: float(next(ticks))))
    return module


def events_of(clock):
    return [json.loads(line)["event"] for line in open(clock.FILE)]


class PPOTrainer:
    """As much of verl's as the clock stands around."""

    def __init__(self, buffer):
        self.buffer = buffer

    def _init_resource_pool_mgr(self): ...
    def _load_checkpoint(self): ...
    def _submit_batch_to_rollout(self): ...

    def _compute_metrics(self, batch, metrics, timing_raw):
        return {"of": timing_raw["step"]}

    def fit(self):
        found = []
        for step in (3.0, 4.0):
            self._submit_batch_to_rollout()
            batch = self.buffer.sample()
            found.append(self._compute_metrics(batch, {}, {"step": step}))
        return found


class ReplayBuffer:
    def __init__(self, sessions):
        self.sessions = sessions

    def sample(self):
        for _ in range(2):
            asyncio.run(self.sessions._run_agent_loop())
        return "a batch"


class AgentLoopWorker:
    async def _run_agent_loop(self):
        return "an episode"


def played(clock):
    """Two steps of two sessions each; the answers of what the clock stands around."""
    trainers, loops = ModuleType("trainers"), ModuleType("loops")
    for owner, each in ((trainers, PPOTrainer), (trainers, ReplayBuffer), (loops, AgentLoopWorker)):
        setattr(owner, each.__name__, type(each.__name__, (each,), {}))
    trainers.RewardLoopManager = object
    clock.trainer_loaded(trainers)
    clock.agent_loop_loaded(loops)
    return trainers.PPOTrainer(trainers.ReplayBuffer(loops.AgentLoopWorker())).fit()


def test_the_clock_tells_of_each_rollout_and_changes_nothing(clock):
    assert played(clock) == [{"of": 3.0}, {"of": 4.0}]
    session = ["session over"] * 2
    start = ["agent loop imported", "agent loop there", "trainer imported", "agent loops asked"]
    first, second = ["dispatch", "first session", *session], ["dispatch", *session]
    assert events_of(clock) == [*start, *first, "sampled", "step", *second, "sampled", "step"]


def test_a_rollouts_processor_time_is_what_was_used_between_its_dispatch_and_its_batch(clock, monkeypatch, tmp_path):
    played(clock)
    bench = loaded("bench_verl", monkeypatch)
    looks = [event for event in bench.Told(tmp_path / "clock.jsonl").new() if event != "session over"]
    server, step, used = 0.0, 0.0, []
    for event in looks:
        server += {"sampled": 5.0}.get(event, 0.0)
        step += {"step": 2.0}.get(event, 0.0)
        used.append((event, Counter({"VLLM::EngineCore": 100 + server, "WorkerDict": step})))
    launch = bench.read(tmp_path / "clock.jsonl", 0.0, used)
    assert [each["step"] for each in launch.timings] == [3.0, 4.0]
    assert launch.rollouts == [3.0, 2.0], "by the clock: from the dispatch to the last session"
    assert launch.stretches["rollout"] == [Counter({"VLLM::EngineCore": 5.0, "WorkerDict": 0.0})] * 2
    assert launch.stretches["step"] == [Counter({"VLLM::EngineCore": 5.0, "WorkerDict": 2.0})] * 2
    assert launch.after["sampled"] == 8.0 and launch.used["sampled"]["VLLM::EngineCore"] == 105


def test_a_process_that_has_ended_takes_nothing_away(monkeypatch):
    bench = loaded("bench_verl", monkeypatch)
    assert bench.subtract_counts(Counter(a=5.0), Counter(a=2.0, gone=9.0)) == {"a": 3.0}
    assert bench.subtract_counts(Counter(a=1.0), Counter(a=2.0)) == {"a": 0.0}


def test_a_line_that_is_being_written_is_told_once_it_is_whole(monkeypatch, tmp_path):
    bench = loaded("bench_verl", monkeypatch)
    clock = tmp_path / "clock.jsonl"
    clock.write_text('{"event": "dispatch"}\n{"event": "sam')
    told = bench.Told(clock)
    assert told.new() == ["dispatch"] and told.new() == []
    with clock.open("a") as file:
        file.write('pled"}\n')
    assert told.new() == ["sampled"]
