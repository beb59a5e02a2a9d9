"""An opening of attempts that is refused leaves nothing: no processes, and no run's address in the environment."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from ajet.rollout import attempt_runner
from ajet.schema.endpoint import Endpoint


def test_what_was_opened_before_a_refusal_is_closed_again(monkeypatch):
    before, closed = dict(os.environ), []
    part = SimpleNamespace(is_remote=False, close=lambda: closed.append("isolation"))
    world = SimpleNamespace(close=lambda: closed.append("worlds"))
    monkeypatch.setattr(attempt_runner, "open_isolation", lambda *_: part)
    monkeypatch.setattr(attempt_runner.EnvironmentInstances, "open", lambda _: world)
    monkeypatch.setattr(attempt_runner, "open_replay", lambda _: None)

    class Refused(attempt_runner.RunEnvironment):
        def __init__(self, endpoint):
            raise OSError("no library to tie")

    monkeypatch.setattr(attempt_runner, "RunEnvironment", Refused)
    rollout = SimpleNamespace(compute_madness_checklist=[])
    experiment = SimpleNamespace(ajet=SimpleNamespace(rollout=rollout), config=None)
    gateway = SimpleNamespace(ambient=Endpoint("http://127.0.0.1:9/v1", "key"))
    with pytest.raises(OSError, match="no library"):
        attempt_runner.AttemptRunner(experiment, gateway, object, SimpleNamespace(), None)
    assert closed == ["isolation", "worlds"] and dict(os.environ) == before
