"""How `ajet deploy` and `ajet observe` end: SIGTERM lets what is answered be finished, and no signal is lost."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from ajet.commands.http_server import serve_until_ended
from ajet.train.interrupts import Interrupts


def ended(look, idle, grace=60.0) -> float:
    """Seconds until it was."""
    began = time.monotonic()
    with Interrupts().install() as interrupts:
        serve_until_ended(interrupts, look, idle, grace=grace)
    return time.monotonic() - began


def test_sigterm_waits_until_nobody_is_answered():
    looks = iter([False, False, True])
    ended(lambda: signal.raise_signal(signal.SIGTERM), lambda: next(looks))
    assert next(looks, None) is None


def test_sigterm_waits_for_nobody_longer_than_its_time():
    assert 0.1 <= ended(lambda: signal.raise_signal(signal.SIGTERM), lambda: False, grace=0.1) < 30


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_waits_for_nothing(second):
    def idle() -> bool:
        signal.raise_signal(second)
        return False

    if second == signal.SIGTERM:
        assert ended(lambda: signal.raise_signal(signal.SIGTERM), idle) < 30
    else:
        with pytest.raises(KeyboardInterrupt):
            ended(lambda: signal.raise_signal(signal.SIGTERM), idle)


def test_an_interrupt_that_python_forgets_is_raised_after_the_look(monkeypatch):
    forgotten, looks = [], []

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def look() -> None:
        looks.append(Finalized() and None)

    monkeypatch.setattr(sys, "unraisablehook", lambda told: forgotten.append(told.exc_type))
    with pytest.raises(KeyboardInterrupt):
        ended(look, lambda: True)
    assert forgotten == [] and len(looks) == 1
