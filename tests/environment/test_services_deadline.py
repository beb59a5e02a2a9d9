"""A request to an environment service ends with the time that is left, however often it is tried."""

from __future__ import annotations

import http.client
from types import SimpleNamespace

import pytest

from ajet.environment.services import EnvService, wire
from ajet.schema.errors import EnvironmentFailure


class Clock:
    """One that goes on while somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.passes))

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_a_machine_that_takes_no_connection_is_not_waited_for_longer_than_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    def connects(connection: http.client.HTTPConnection) -> None:
        assert connection.timeout is not None
        clock.passes(connection.timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connects)
    with pytest.raises(EnvironmentFailure, match="no connection"):
        EnvService("http://there").ask("step", instance_id="i", within=5.0)
    assert clock.now == pytest.approx(5.0)


def test_the_time_of_an_answer_counts_from_before_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(monkeypatch), list[float]()

    def connects(connection: http.client.HTTPConnection) -> None:
        clock.passes(4.0)
        connection.sock = SimpleNamespace(settimeout=waits.append, sendall=lambda data: None, close=lambda: None)

    def answers(connection: http.client.HTTPConnection) -> None:
        clock.passes(waits[-1])
        raise TimeoutError("timed out")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", connects)
    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", answers)
    with pytest.raises(EnvironmentFailure, match="no answer within 5 s"):
        EnvService("http://there").ask("step", instance_id="i", within=5.0)
    assert clock.now == pytest.approx(5.0)
