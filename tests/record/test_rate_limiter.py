"""What would be said again and again is said once in a while, each by its name."""

from __future__ import annotations

import os
import signal

import pytest

from ajet.environment import chat_model
from ajet.record import rate_limiter
from ajet.record.rate_limiter import RateLimiter


def test_the_first_of_a_while_is_due_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rate_limiter.time, "monotonic", lambda: now[0])
    said = RateLimiter(60.0)
    assert [said.is_due(), said.is_due(), said.is_due("other")] == [True, False, True]
    now[0] = 59.9
    assert not said.is_due()
    now[0] = 60.0
    assert said.is_due() and not said.is_due()


def test_a_fork_says_anew_that_a_model_hangs_whoever_held_the_lock() -> None:
    assert chat_model.hung_endpoints.is_due("a server")
    with chat_model.hung_endpoints._lock:
        copy = os.fork()
        if copy == 0:
            signal.alarm(10)
            os._exit(not chat_model.hung_endpoints.is_due("a server"))
    assert os.waitpid(copy, 0)[1] == 0
