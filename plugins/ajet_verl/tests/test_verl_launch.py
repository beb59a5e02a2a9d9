"""How a launch on verl goes on from a checkpoint, hears its trainer out and ends: without Ray, whose part is played."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loguru import logger

from ajet.commands.launch import launch
from ajet.config import Experiment
from ajet.schema.errors import ConfigError, RunFailed, UserError
from ajet.train.interrupts import Interrupts
from ajet.train.runner import LaunchOptions
from ajet.train.sink import RunSink
from ajet_ray.mailbox import DeathNotice, PhaseNotice, StepNotice
from ajet_verl import cpu
from ajet_verl.launch import VerlRunner
from ajet_verl.trainer import reporting
from ajet_verl.trainer.reporting import ReportingHooks, RunStoppedError
from tests.support.verl_fixtures import without_verl

pytestmark = pytest.mark.verl


class Box:
    """Stands where the mailbox and the way to it do."""

    def __init__(self) -> None:
        self.letters: list[Any] = []
        self.stop = False

    def post(self, *letters: Any) -> None:
        self.letters += letters

    post_and_wait = post

    def should_stop(self) -> bool:
        return self.stop


class Verls:
    """What of verl's trainer the hooks stand before."""

    def __init__(self, config: Any) -> None:
        self.config, self.total_training_steps, self.global_steps = config, 9, 3
        self.done: list[str] = []

    def _save_checkpoint(self) -> None:
        self.done.append("saved")

    def on_step_end(self) -> None:
        self.done.append("ended")

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any) -> None:
        self.done.append("measured")


class Trainer(ReportingHooks, Verls):
    """As ours are made."""


@pytest.mark.parametrize(
    ("stop", "every", "done"),
    [
        (True, -1, ["saved", "ended", "measured"]),
        (True, 2, ["saved", "ended", "measured"]),
        (True, 3, ["ended", "measured"]),
        (False, -1, ["ended", "measured"]),
    ],
    ids=["never saved", "not saved now", "saved by verl", "not asked"],
)
def test_a_trainer_that_is_asked_to_stop_saves_posts_its_step_and_ends(
    monkeypatch: pytest.MonkeyPatch, stop: bool, every: int, done: list[str]
) -> None:
    box = Box()
    monkeypatch.setattr(reporting, "Sender", lambda: box)
    trainer = Trainer(SimpleNamespace(trainer=SimpleNamespace(save_freq=every)))
    box.stop = stop
    trainer.on_step_end()
    if stop:
        with pytest.raises(RunStoppedError):
            trainer._compute_metrics(None, {}, {})
    else:
        trainer._compute_metrics(None, {}, {})
    assert trainer.done == done
    (stepped,) = box.letters
    assert isinstance(stepped, StepNotice) and stepped.step == 3, "the step is in the record before the run ends"


class Heard:
    """Stands where the record and the segments do."""

    def __init__(self) -> None:
        self.letters: list[Any] = []
        self.looks = self.asked = self.missing_groups = 0
        self.known: list[int] = []
        self.is_exhausted = self.can_fill_missing = False

    def handle_notice(self, letter: Any) -> None:
        self.letters.append(letter)
        self.is_exhausted = self.is_exhausted or letter == PhaseNotice("update", 7)

    def record_segments(self) -> None:
        self.looks += 1

    def list_grants(self) -> list[int]:
        return [len(self.letters)]

    def list_open(self) -> list[int]:
        return [7]

    def know(self, grants: list[int], places: list[int]) -> None:
        assert places == [7]
        self.known += grants


def listened(
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[tuple[bool, list[Any]]],
    problem: Any = None,
    *,
    stopping: bool = False,
    lacking: int = 0,
    hopes: bool = False,
    asked: float | None = None,
) -> Heard:
    """What was heard in rounds of (whether the trainer has ended, letters). `stopping`: after a Ctrl-C; `lacking`:
    groups that samplers are to play; `hopes`: that they play; `asked`: so many seconds ago by SIGTERM."""
    ray = pytest.importorskip("ray")
    from ajet_ray.on_ray import RunListener

    done, heard, left = object(), Heard(), iter(rounds)
    heard.missing_groups, heard.can_fill_missing = lacking, hopes
    now: list[Any] = []

    def wait(_: Any, timeout: float) -> tuple[list[Any], list[Any]]:
        ended, letters = next(left)
        now[:] = letters
        return ([done], []) if ended else ([], [done])

    def get(what: Any) -> Any:
        if what == "stop":
            heard.asked += 1
            return None
        if what is not done:
            return list(now)
        if problem is not None:
            raise problem
        return None

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    mailbox = SimpleNamespace(
        take=SimpleNamespace(remote=lambda seconds: seconds),
        know=SimpleNamespace(remote=heard.know),
        ask_to_stop=SimpleNamespace(remote=lambda: "stop"),
    )
    try:
        told: Any = heard
        interrupts = Interrupts()
        interrupts._preempted_at = None if asked is None else time.monotonic() - asked
        ears = RunListener("verl", mailbox, done, told, told, Path("the logs"), interrupts, told, grace=60.0)
        asked_to_end = ears.listen(stopping=stopping)
        assert asked_to_end == (stopping or heard.asked > 0)
    finally:
        assert next(left, None) is None, "it listens until nothing comes any more"
    return heard


def test_what_a_trainer_said_before_its_end_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [PhaseNotice("rollout", 1), DeathNotice("agent loop", "killed"), PhaseNotice("update", 1)]
    heard = listened(monkeypatch, [(False, letters[:1]), (True, letters[1:]), (True, [])])
    assert heard.letters == letters and heard.looks >= 2
    assert heard.known == [0, 1, 3], "what tickets are for is said before more is heard"


@pytest.mark.parametrize("where", ["while it waits", "in a letter"])
def test_a_second_interrupt_loses_no_letter_and_in_one_it_ends_the_run_as_a_kill_does(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from ajet_ray.on_ray import RunListener

    def twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    done, heard, asked, left = object(), Heard(), list[str](), [True]
    letters = [PhaseNotice("rollout", 1), PhaseNotice("update", 1)]
    waiting = iter([letters, []])

    def get(what: Any) -> Any:
        if callable(what):
            return what()
        return None if what is done else asked.append("stop")

    def take(seconds: float) -> Any:
        taken = next(waiting)  # they have left the mailbox

        def come() -> Any:
            if where == "while it waits" and left:
                left.clear()
                twice()
            return taken

        return come

    def recorded(letter: Any) -> None:
        if where == "in a letter" and letter is letters[1]:
            twice()
        heard.letters.append(letter)

    monkeypatch.setattr(ray, "wait", lambda those, timeout: ([], those) if not heard.letters else (those, []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(heard, "handle_notice", recorded)
    mailbox = SimpleNamespace(
        take=SimpleNamespace(remote=take), know=SimpleNamespace(remote=heard.know),
        ask_to_stop=SimpleNamespace(remote=lambda: "stop"),
    )  # fmt: skip
    told: Any = heard
    interrupts = Interrupts()
    ears = RunListener("verl", mailbox, done, told, told, Path("the logs"), interrupts, told, grace=60.0)
    with interrupts.install(), pytest.raises(KeyboardInterrupt):
        ears.listen_until_end()
    if where == "in a letter":
        assert (heard.letters, asked) == (letters[:1], []), "no checkpoint counts what is not recorded"
    else:
        assert (heard.letters, asked) == (letters, ["stop"])


def test_what_processes_hold_is_looked_at_while_they_load_and_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM that is killed before the first step leaves its shared memory as any other does."""
    monkeypatch.setattr("ajet_ray.on_ray.CHECK_S", 0.0)
    assert listened(monkeypatch, [(False, []), (False, []), (True, [])]).looks == 3


def test_a_long_start_says_who_printed_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ajet_ray.on_ray.START_S", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "the logs").mkdir()
    (tmp_path / "the logs" / "run_vLLM_0.log").write_text("one\nloading weights\n")
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    try:
        listened(
            monkeypatch,
            [(False, []), (False, [PhaseNotice("loading")]), (False, [PhaseNotice("rollout", 1)]), (True, [])],
        )
    finally:
        logger.remove(sink)
    said = [line for line in lines if "run_vLLM_0.log" in line]
    assert len(said) == 2 and all("loading weights" in line for line in said), "until the first rollout"


def test_a_run_that_learns_nothing_is_asked_to_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [
        (False, [PhaseNotice("rollout", 1)]),
        (False, [PhaseNotice("update", 7)]),
        (False, []),
        (False, []),
        (True, []),
    ]
    assert listened(monkeypatch, rounds).asked == 1
    assert listened(monkeypatch, [(False, []), (True, [])]).asked == 0


def test_who_is_interrupted_waits_for_no_group_that_samplers_are_to_play(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be none, and each step that is over has its checkpoint."""
    rounds = [(False, [PhaseNotice("update", 1)]), (False, [])]
    assert listened(monkeypatch, rounds, stopping=True, lacking=2).letters == [PhaseNotice("update", 1)]
    listened(monkeypatch, [*rounds, (True, [])], lacking=2)
    listened(monkeypatch, [*rounds, (True, [])], stopping=True)


def test_who_is_asked_to_end_waits_for_groups_that_are_being_played_within_the_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled = [(False, [])] * 3 + [(True, [PhaseNotice("checkpoint", 1)]), (True, [])]
    assert listened(monkeypatch, filled, stopping=True, lacking=2, hopes=True, asked=1.0).letters
    for asked in (None, 61.0):  # Ctrl-C, or its time is over
        listened(monkeypatch, [(False, [])], stopping=True, lacking=2, hopes=True, asked=asked)
    listened(monkeypatch, [(False, [])], stopping=True, lacking=2, asked=1.0)
    ray = pytest.importorskip("ray")
    with pytest.raises(RunFailed, match="killed meanwhile"):
        problem = ray.exceptions.RayActorError(error_msg="killed meanwhile")
        listened(monkeypatch, [(False, []), (True, [])], problem, stopping=True, lacking=2, hopes=True, asked=1.0)


def test_how_a_run_ends_is_not_ray_s_to_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Ray starts it takes SIGTERM for itself, to end at once."""
    ray = pytest.importorskip("ray")
    from ajet_ray.cluster.ray_cluster import RayNeeds, connect_to_ray
    from ajet_ray.cluster.resources import Demand

    def init(**more: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8})
    monkeypatch.setattr(ray, "nodes", lambda: [])
    needs = RayNeeds(Demand((0, 0), (0, 0)), "GPU", "verl", "a test", {}, "", "")
    interrupts = Interrupts()
    with interrupts.install():
        for address in (None, "127.0.0.1:1"):
            with connect_to_ray(needs, address=address, folder=tmp_path, environment={}, temporary=tmp_path):
                assert signal.getsignal(signal.SIGTERM) == interrupts.handle_signal


def test_a_trainer_that_failed_ends_the_run_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    problem = ray.exceptions.RayActorError(error_msg="The actor died.\nvLLMHttpServer was killed")
    with pytest.raises(RunFailed, match="verl ended the run: .*vLLMHttpServer was killed") as said:
        listened(monkeypatch, [(False, []), (True, [])], problem)
    assert "the logs" in str(said.value) and "resumes from the last checkpoint" in str(said.value)


def test_vllm_finds_a_plug_in_of_ours_in_runs_on_a_cpu_alone() -> None:
    found = (
        "from importlib.metadata import entry_points as e; print([p.value for p in e(group='vllm.general_plugins')])"
    )
    told = [
        subprocess.run([sys.executable, "-c", found], env={**os.environ, **more}, capture_output=True, text=True).stdout
        for more in ({}, cpu.build_environment())
    ]
    assert "ajet" not in told[0] and told[1].count("ajet_verl.cpu.vllm_plugin:register") == 1


@without_verl
def test_samplers_without_a_store_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    tree = {
        "backbone": "verl",
        "model": {"path": "embedded:tiny-tools"},
        "task_reader": {"type": "random_dummy"},
        "rollout": {"user_workflow": "agent.py->Agent", "max_model_len": 1000},
        "data": {"max_prompt_length": 500, "max_response_length": 500},
        "trainer_common": {"device": "cpu", "n_gpus_per_node": 1, "mode": "async"},
    }
    experiment = Experiment.from_dict({"ajet": tree}, base=tmp_path, exp_dir=tmp_path / "record")
    with pytest.raises(ConfigError, match="no store is set"):
        launch(experiment, LaunchOptions())
    assert not (tmp_path / "record").exists()


@pytest.mark.slow
@without_verl
def test_a_port_that_no_gateway_could_have_is_said_before_ray_starts(tmp_path: Path, monkeypatch: Any) -> None:
    """Each process that plays has a gateway: one port is one process's, and not another program's."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    taken = socket.create_server(("127.0.0.1", 0))
    tree: dict[str, Any] = {
        "backbone": "verl",
        "model": {"path": "embedded:tiny-tools"},
        "task_reader": {"type": "random_dummy"},
        "rollout": {"user_workflow": "agent.py->Agent", "max_model_len": 1000},
        "data": {"max_prompt_length": 500, "max_response_length": 500},
        "trainer_common": {"device": "cuda", "n_gpus_per_node": 8},
        "gateway": {"port": taken.getsockname()[1]},
    }

    def of(**more: Any) -> Experiment:
        return Experiment.from_dict({"ajet": tree, **more}, base=tmp_path, exp_dir=tmp_path / "record")

    with taken, pytest.raises(UserError, match="gateway cannot listen on 127.0.0.1") as refused:
        launch(of(), LaunchOptions())
    assert "gateway.port" in refused.value.where and not (tmp_path / "record").exists()
    with pytest.raises(ConfigError, match="8 processes run episodes") as shared:
        launch(of(), LaunchOptions())
    assert "agent.num_workers: 1" in shared.value.expected and not (tmp_path / "record").exists()
    one = of(verl={"actor_rollout_ref": {"rollout": {"agent": {"num_workers": 1}}}})
    VerlRunner().require(one, LaunchOptions())
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # what is free there is not seen from here
    VerlRunner().require(of(), LaunchOptions())


@pytest.mark.slow
@without_verl
def test_a_launch_goes_on_from_the_runs_last_checkpoint(tmp_path: Path) -> None:
    from ajet_verl.train import _prepare_config

    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"main_query": "What is {n}?"}}\n' for n in range(8)))
    tree = {
        "backbone": "verl",
        "model": {"path": "embedded:tiny-tools"},
        "task_reader": {"type": "jsonl_dataset_file", "jsonl_dataset_file": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {"user_workflow": "agent.py->Agent", "max_model_len": 1000},
        "data": {"train_batch_size": 4, "max_prompt_length": 500, "max_response_length": 500},
        "trainer_common": {"device": "cpu", "total_training_steps": 8, "n_gpus_per_node": 1},
    }
    experiment = Experiment.from_dict({"ajet": tree}, base=tmp_path)
    run: Any = SimpleNamespace(
        path=tmp_path / "run", run_id="r", resumed=None, status=SimpleNamespace(set=lambda **_: None)
    )
    sink: Any = RunSink(experiment, run, None, None)  # type: ignore[arg-type]
    fresh, order, words, tokenizer = _prepare_config(experiment, run, sink, own=True)
    assert fresh["trainer"]["resume_mode"] == "disable"
    assert words.render([{"role": "user", "content": "hello"}]).ids.size, "what a step's sample is proven with"
    folder = run.path / "checkpoints" / "step-4"
    run.resumed = SimpleNamespace(step=4, path=folder, state={"verl": "global_step_4", "order": order.identity()})
    trainer = _prepare_config(experiment, run, sink, own=True)[0]["trainer"]
    assert (trainer["resume_mode"], trainer["resume_from_path"]) == ("resume_path", str(folder / "global_step_4"))
    assert trainer["val_before_train"] is False, "it was done before"
    del run.resumed.state["verl"]
    with pytest.raises(ConfigError, match="another backbone"):
        _prepare_config(experiment, run, sink, own=True)
