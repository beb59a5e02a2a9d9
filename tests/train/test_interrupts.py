"""SIGHUP counts as SIGTERM, `nohup` holds, and no signal is lost in a finalizer."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ajet.train.interrupts import Interrupts, Preempted, end_on_hangup


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_hangup_waits_for_the_step_as_sigterm_does() -> None:
    held = False
    with Interrupts().install() as interrupts, pytest.raises(Preempted), interrupts.grace_period(60.0):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # a shell sends it to its jobs once more
        with interrupts.defer():
            held = True
    assert held


@pytest.mark.parametrize("inner", [True, False])
def test_an_interrupt_waits_for_the_outermost_block(inner: bool) -> None:
    done: list[str] = []
    with Interrupts().install() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.defer():
        with interrupts.defer(ends_step=inner):
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Preempted), (signal.SIGHUP, Preempted)],
)
def test_outside_of_a_step_it_is_raised_at_once(number: signal.Signals, kind: type[KeyboardInterrupt]) -> None:
    with Interrupts().install(), pytest.raises(KeyboardInterrupt) as raised:
        signal.raise_signal(number)
    assert raised.type is kind


def test_an_ignored_hangup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts().install():
        signal.raise_signal(signal.SIGHUP)
    end_on_hangup()
    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_server_ends_at_a_hangup_as_at_sigterm() -> None:
    def ended(*_: object) -> None:
        raise SystemExit

    end_on_hangup()
    signal.signal(signal.SIGTERM, ended)
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_within_a_finalizer_arrives_without_a_traceback(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)

    class Client:
        def __del__(self) -> None:
            signal.raise_signal(number)

    with Interrupts().install(), pytest.raises(KeyboardInterrupt):
        Client()
        gc.collect()
        time.sleep(30)
    assert not printed


def test_a_finalizers_signal_survives_a_slow_thread_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(0.2)  # as on a machine with more work than cores

    class Client:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with Interrupts().install(), pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(threading.Thread, "start", start_slowly)
        Client()
        time.sleep(5)


def test_other_errors_of_a_finalizer_are_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)

    class Client:
        def __del__(self) -> None:
            raise ValueError("its own")

    with Interrupts().install():
        Client()
        gc.collect()
    assert [each.exc_type for each in printed] == [ValueError]
