"""Both sides under one command: when the sampler begins, and where two sides cannot win, said by the measured share of
time outside of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loguru import logger

from ajet.backbone.decoupled.terms import OVER
from ajet.commands import runner
from ajet.commands.runner import InProcessRunner
from ajet.commands.sampling import colocated as sampler_beside_module
from ajet.commands.sampling.colocated import STORE, run_colocated_sampler, warn_of_no_waiting
from ajet.commands.supervised_process import SupervisedProcess
from ajet.schema.episode import Episode
from ajet.store import Address, Policy, open_shared
from ajet.train import parts
from tests.support.local_fixtures import config_of, episode_of


def of_folder(path: Path) -> Any:
    """What is read of an experiment."""
    settings = SimpleNamespace(trainer_common=SimpleNamespace(threads="auto"), rollout=SimpleNamespace(engine="auto"))
    return SimpleNamespace(base=path, ajet=settings)


def played(outside: float) -> Episode:
    """Ten seconds long, so much of it outside of its one call."""
    episode = episode_of(1.0)
    calls = [replace(episode.calls[0], started=100.0, ended=110.0 - 10 * outside)]
    return replace(episode, started=100.0, ended=110.0, calls=calls)


@pytest.mark.parametrize("outside, warns", [(0.02, True), (0.5, False)])
def test_agents_that_wait_for_the_model_alone_are_named(outside: float, warns: bool) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    try:
        warn_of_no_waiting([played(outside), played(outside)])
    finally:
        logger.remove(sink)
    assert any("the agents spend 2%" in each for each in said) == warns


def test_a_run_that_had_ended_begins_its_sampler_once_it_has_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the last policy says that the training is over: a sampler would end at once, and the run with it."""
    events: list[str] = []
    for name in ("start", "require_running", "close"):
        monkeypatch.setattr(SupervisedProcess, name, lambda self, name=name: events.append(name))
    monkeypatch.setattr(SupervisedProcess, "started", property(lambda self: "start" in events))
    run: Any = SimpleNamespace(path=tmp_path)
    experiment = of_folder(tmp_path)
    with run_colocated_sampler(experiment, run):
        assert events == ["start"]
    events.clear()
    store = open_shared(Address(tmp_path / STORE), rolls=True)
    store.announce(Policy("run", 1, "", told={OVER: True}))
    store.disconnect()
    with run_colocated_sampler(experiment, run) as samplers:
        assert events == []
        samplers.watch()
        assert events == ["start", "require_running"]
    assert events[-1] == "close"


@pytest.mark.parametrize("trains", [True, False])
def test_a_store_that_the_sampler_made_goes_where_no_trainer_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    """Else a start that ended while the trainer loaded would be a run, which other settings cannot go on with."""
    monkeypatch.setattr(SupervisedProcess, "start", lambda self: open_shared(Address(tmp_path / STORE)).disconnect())
    monkeypatch.setattr(SupervisedProcess, "close", lambda self: None)
    run: Any = SimpleNamespace(path=tmp_path)
    experiment = of_folder(tmp_path)
    with suppress(ZeroDivisionError), run_colocated_sampler(experiment, run):
        if trains:
            store = open_shared(Address(tmp_path / STORE), rolls=True)
            store.join("trainer", "run")
            store.disconnect()
        raise ZeroDivisionError
    assert [each.name for each in tmp_path.iterdir() if each.name != "logs"] == ([STORE] if trains else [])
    with run_colocated_sampler(experiment, run):  # one that was there is never removed
        pass
    assert (tmp_path / STORE).exists() == trains


def test_the_sampler_loads_while_the_trainer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[str]:
        events.append(name)
        yield name
        events.append(f"{name} ends")

    monkeypatch.setattr(sampler_beside_module, "run_colocated_sampler", lambda *given: noted("sampler"))
    monkeypatch.setattr(sampler_beside_module, "share_cores", lambda experiment: experiment)
    monkeypatch.setattr(parts, "assemble", lambda *given, **more: noted("trainer"))
    monkeypatch.setattr(parts, "pins_of", lambda run: None)
    monkeypatch.setattr(runner, "train_parts", lambda given, run, samplers, *more: events.append(samplers))
    experiment: Any = SimpleNamespace(ajet=config_of(mode="async"))
    options: Any = SimpleNamespace(from_store=None, rehearsal=False)
    one: Any = SimpleNamespace(run_id="run", on_episode=None, on_step=None)
    InProcessRunner().train(experiment, one, options, one, one)
    assert events == ["sampler", "trainer", "sampler", "trainer ends", "sampler ends"]
