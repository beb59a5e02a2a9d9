"""One suite over every Tracker: those that come with ajet, and one by reference. Services write files only here."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.schema.commands import format_extra_install
from ajet.schema.episode import Outcome, Verdict
from ajet.schema.task import Task
from tests.support.plugin_packages import write_plugin
from tests.support.record_fixtures import episode as recorded_episode
from tests.support.tracker_readers import READERS, TOY, variables
from tests.support.trackers import (
    SERVICES,
    TrackedRun,
    Tracker,
    Trackers,
    is_console,
    open_metrics,
    open_run,
    open_trackers,
    recorded_loggers,
    tracked_run,
    tracker_kinds,
)

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "swanlab": "swanlab", "mlflow": "mlflow"}
"""The extra of each that needs one, and the package."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in variables():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield


@pytest.fixture(scope="session", autouse=True)
def service() -> Iterator[None]:
    """wandb's process, which otherwise goes when this one does."""
    yield
    if "wandb" in sys.modules:
        importlib.import_module("wandb").teardown()


@pytest.fixture(params=[TOY, *SERVICES], ids=lambda name: name.split(">")[-1])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Warnings."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message).strip()), format="{message}", level="WARNING")
    yield lines
    logger.remove(sink)


def opened(name: str, run: TrackedRun) -> Trackers:
    (tracker,) = open_trackers(name, run)
    assert not is_console(tracker), f"{name} was not opened"
    return Trackers([tracker])


def test_it_keeps_identity_configuration_numbers_and_episodes_also_where_a_run_goes_on(
    name: str,
    tmp_path: Path,
    said: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole contract, on the disk, by the tracker's own reader."""
    folder, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))  # that of all tests has what others write there meanwhile
    monkeypatch.setattr(sys, "argv", ["ajet", "of=the-command-line"])
    secrets = {"MY_TOKEN": "tok-12345678"}
    played = [
        recorded_episode(
            f"e{index}",
            task=Task(main_query=f"question {index} tok-12345678 {'x' * 2000}", task_id=f"t{index}"),
            messages=[{"role": "assistant", "content": f"answer {index}"}],
            verdict=Verdict(float(index), None, "equal"),
        )
        for index in range(40)
    ]
    trackers = opened(name, tracked_run(folder, secrets=secrets))
    trackers.metrics(1, {"train/reward": 0.25, "loss": -1e30})
    trackers.metrics(1, {"validation/reward": 0.5, "a/b/c": 0.0, "ünï": 1.0, "count": 3})
    trackers.episodes(1, "train", played, {"e0": Outcome(step=1, advantage=-1.5)})
    trackers.metrics(2, {"train/reward": 0.75})
    trackers.metrics(2, {})
    trackers.episodes(2, "validation", [], {})
    trackers.close("interrupted")
    trackers.close()
    again = opened(name, tracked_run(folder, resumed=1, secrets=secrets))
    again.metrics(3, {"train/reward": 1.0})
    again.close()
    assert said == [] and again.opened == []

    ids, kept, told = READERS[name](folder)
    assert ids == {"0123456789abcdef"} if name != "tensorboard" else ids == {"its folder"}
    numbers = {(key, step): value for key, step, value in kept}
    assert numbers["train/reward", 1] == 0.25 and numbers["train/reward", 3] == 1.0
    assert numbers["validation/reward", 1] == 0.5 and numbers["a/b/c", 1] == 0 and numbers["count", 1] == 3
    assert {key for key, _ in numbers} == {"train/reward", "loss", "validation/reward", "a/b/c", "ünï", "count"}
    if name != "tensorboard":  # has no place for them
        assert "num_repeat" in told and "a:model" in told
        assert "question 0" in told and "question 39" in told
    if name in ("wandb", "swanlab", "mlflow"):
        assert told.count("answer ") + told.count("answer\\n") == 16 and "-1.5" in told
        assert "tok-12345678" not in told and "redacted MY_TOKEN" in told and "x" * 600 not in told
        assert "the-command-line" not in told
    assert not [*home.iterdir()] and {path.name for path in tmp_path.iterdir()} == {"run", "home"}, "its folder alone"
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err == "", "it is quiet"


def test_numbers_that_are_not_finite_never_reach_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    metrics = open_metrics(tmp_path / "metrics.jsonl", open_trackers(TOY, tracked_run(folder)))
    metrics.log(1, {"train/reward": 0.5, "loss": float("nan"), "grad_norm": float("inf")}, tasks=[1, 2])
    metrics.close("failed")
    assert READERS[TOY](folder)[1] == [("train/reward", 1, 0.5)] and "failed" in READERS[TOY](folder)[2]


@pytest.mark.parametrize("name", list(PACKAGES))
def test_one_that_is_not_installed_says_the_extra_and_the_console_stands_in(
    name: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = PACKAGES[name]
    for module in [package, *(each for each in sys.modules if each.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    if name == "tensorboard":
        monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    (tracker,) = open_trackers(name, tracked_run(tmp_path / "run"))
    assert is_console(tracker)
    assert len(said) == 1 and format_extra_install(name) in said[0] and f"tracker {name}" in said[0]


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_service_without_a_key_asks_nobody(
    name: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{name.upper()}_MODE", "online")
    monkeypatch.delenv(f"{name.upper()}_API_KEY", raising=False)
    if name == "wandb":
        importlib.import_module("wandb").teardown()  # it read the mode when it was first used
    (tracker,) = open_trackers(name, tracked_run(tmp_path / "run"))
    assert is_console(tracker) and len(said) == 1 and f"{name.upper()}_API_KEY" in said[0], said
    if name == "wandb":
        importlib.import_module("wandb").teardown()


class Slow(Tracker):
    """Its server never answers."""

    patience_s = 0.05
    closing_s = 0.05
    told: list[str] = []

    def metrics(self, step: int, numbers: Any) -> None:
        threading.Event().wait()

    def close(self) -> None:
        threading.Event().wait()


class SlowToOpen(Slow):
    def __init__(self, run: TrackedRun) -> None:
        threading.Event().wait()


def test_one_that_does_not_answer_costs_its_patience_and_stops_nothing(tmp_path: Path, said: list[str]) -> None:
    run = tracked_run(tmp_path / "run")
    (console,) = open_trackers(f"{__file__}->SlowToOpen", run)
    assert is_console(console) and "did not answer within 0.05 s" in said[0]
    metrics = open_metrics(tmp_path / "metrics.jsonl", [Slow(run), *open_trackers(TOY, run)])
    metrics.log(1, {"x": 1})
    metrics.log(2, {"x": 2})
    assert "Slow failed (TimeoutError: the tracker did not answer within 0.05 s)" in said[1] and len(said) == 2
    metrics.trackers.opened.append(Slow(run))
    metrics.close()
    assert len(said) == 3 and READERS[TOY](run.folder)[1] == [("x", 1, 1), ("x", 2, 2)]


def test_an_installed_package_may_bring_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    trackers = "trackers={'other': 'tests.support.tracker_readers:Toy', 'broken': 'nowhere:Toy'}"
    monkeypatch.syspath_prepend(str(write_plugin(tmp_path / "packages", "other", trackers)))
    conf = tmp_path / "x.yaml"
    conf.write_text("ajet:\n  task_reader: {type: random_dummy}\n  trainer_common: {logger: [other, broken]}\n")
    with open_run(conf, "local", tmp_path / "runs") as run:
        run.metrics.log(1, {"train/reward": 0.5})
    assert READERS[TOY](run.path)[1] == [("train/reward", 1, 0.5)]
    assert len(said) == 1 and "the tracker broken" in said[0] and "nowhere" in said[0]


@pytest.mark.parametrize("told", ["tensorboard", ["console", "tensorboard"]])
@pytest.mark.parametrize("backbone", ["debug", "local", "verl"])
def test_each_form_is_the_same_on_each_backbone(told: str | list[str], backbone: str, tmp_path: Path) -> None:
    conf = tmp_path / "x.yaml"
    conf.write_text(f"ajet:\n  task_reader: {{type: random_dummy}}\n  trainer_common: {{logger: {told}}}\n")
    with open_run(conf, backbone, tmp_path / "runs") as run:
        kinds = tracker_kinds(run)
    wanted = ["ConsoleTracker", "TensorboardTracker"] if isinstance(told, list) else ["TensorboardTracker"]
    assert kinds == ([] if backbone == "debug" else wanted)  # and verl's own are none: ajet_verl's test_verl_layer.py


def test_a_record_names_no_service_to_tell(tmp_path: Path) -> None:
    conf = tmp_path / "x.yaml"
    named = f"[wandb, console, '{TOY}', mlflow, tensorboard]"
    conf.write_text(f"ajet:\n  task_reader: {{type: random_dummy}}\n  trainer_common: {{logger: {named}}}\n")
    with open_run(conf, "local", tmp_path / "runs", begins=False) as run:
        pass
    assert recorded_loggers(run.path) == ["console", "tensorboard"]


SILENT = """
import os, socket, sys
from pathlib import Path
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen(64)
address = f"http://127.0.0.1:{server.getsockname()[1]}"
os.environ |= {"WANDB_MODE": "online", "WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40}
os.environ |= {"SWANLAB_MODE": "online", "SWANLAB_API_HOST": address, "SWANLAB_API_KEY": "b" * 21}
os.environ |= {"MLFLOW_TRACKING_URI": address}
from tests.support.trackers import TrackedRun, Tracker, Trackers, open_trackers
Tracker.patience_s = Tracker.closing_s = 3.0
trackers = Trackers(open_trackers(sys.argv[1], TrackedRun("p", "r", "0123456789abcdef", Path.cwd())))
trackers.metrics(1, {"kl": 1.0})
trackers.close()
print("went on")
"""


@pytest.mark.extra_slow
@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow"])
def test_a_server_that_takes_a_connection_and_says_nothing_keeps_no_process(name: str, tmp_path: Path) -> None:
    (tmp_path / "resolved.yaml").write_text("ajet: {}\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SILENT, name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0 and "went on" in done.stdout, done.stderr
    assert f"the tracker {name} " in done.stderr and "did not answer within 3 s" in done.stderr
    assert time.monotonic() - begun < 45
