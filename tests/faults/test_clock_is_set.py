"""The system clock is put on by an hour under way: no attempt, action or served episode has less time for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.engine.contract import Sampling
from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.record.secrets import Redactor
from ajet.rollout.attempt import LocalAttempt
from ajet.rollout.served.deadlines import DeadlineWatcher
from ajet.rollout.served.episode import ServedEpisode
from ajet.schema.episode import Episode
from ajet.schema.task import Task, WorkflowTask
from ajet_observe.sessions import ObservedSessions
from tests.support.gateways import start_gateway

HOUR_S = 3600.0


@pytest.fixture
def put_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    real = time.time
    yield lambda: monkeypatch.setattr(time, "time", lambda: real() + HOUR_S)


def test_of_an_attempt_and_an_action(put_on: Any) -> None:
    attempt = LocalAttempt(object, WorkflowTask(task=Task()), None, lambda targets: None)  # type: ignore[arg-type,return-value]
    env = GymEnv(EnvService("http://there", "kind", "secret"), "7")
    env.until = time.monotonic() + HOUR_S
    put_on()
    assert attempt.elapsed_seconds < HOUR_S
    left = env._time_left()
    assert left is not None and left > 0


def test_of_a_served_episode(put_on: Any) -> None:
    about: Any = SimpleNamespace()
    settings: Any = SimpleNamespace(
        rollout=SimpleNamespace(episode_timeout=HOUR_S, group_deadline=None, min_group=None),
        gateway=SimpleNamespace(idle_timeout=HOUR_S),
    )
    more: Any = dict.fromkeys(("end_episode", "give_up", "close"))
    watched = DeadlineWatcher(settings, {}, about, **more)
    with start_gateway() as on:
        session = on.gateway.open("episode", key=(0, 0, 1), sampling=Sampling(200), trainable=None)
        served = ServedEpisode(about, session, about, about, None, about)
        put_on()
        assert served.idle_seconds < HOUR_S and watched.find_timeout(served) is None
        served.since -= HOUR_S
        assert served.idle_seconds > HOUR_S, "it made no call"
        session.recorder.settled_at = time.monotonic()
        assert served.idle_seconds < HOUR_S, "one has ended just now"


def test_of_an_observed_session(put_on: Any, tmp_path: Path) -> None:
    closed: list[str] = []

    def take(episode: Episode, _: Path) -> None:
        closed.append(episode.task.task_id)

    sessions = ObservedSessions(tmp_path, Redactor({}), take, tmp_path / "late", idle=HOUR_S / 2)
    sessions.find("at work")
    put_on()
    sessions.close_idle()
    assert not closed
