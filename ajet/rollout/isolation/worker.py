"""The program of a worker, for the isolations `process`, `sandbox` and `loops`.

    python -m ajet.rollout.isolation.worker CHANNEL CONTROL

The arguments are descriptors of two sockets: the channel, and the control socket, which closes with the parent process.
Invariants: the worker serves until the channel closes. When the parent is gone, for any reason and at any time, the
worker closes its attempts' resources and then kills its descendants and itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import psutil

from ajet.environment.family import adopt_orphans, end_descendants
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.messages import CLOSED, GRACE, ID_BYTES, LOCATE, WorkerSetup, decode_setup
from ajet.rollout.isolation.worker_channel import WorkerChannel

PARENT_DEATH_SIGNAL = 1
"""The value of PR_SET_PDEATHSIG in <sys/prctl.h>."""


class Player(Protocol):
    """Plays the attempts of this worker: `SinglePlayer` or `SharedPlayer`."""

    def take(self, order: Message) -> None:
        """Carry out a message `attempt` or `stop`, in the main thread."""
        ...

    def locate(self, number: int) -> str:
        """Return the current line of user code of the numbered attempt, or ""."""
        ...

    def close_resources(self) -> Sequence[threading.Thread]:
        """Start to close the attempts' resources. Closing may hang. Return the closing threads."""
        ...


def main() -> None:
    """Serve the rollout until the rollout is gone."""
    channel = WorkerChannel(int(sys.argv[1]))
    control, parent = int(sys.argv[2]), os.getppid()
    os.set_inheritable(control, False)
    adopt_orphans()
    wake_when_alone()
    with _open_player(channel, decode_setup(channel.receive().body)) as player:
        channel.start_reading()
        ending = threading.Thread(target=_serve_control, args=(control, parent, player), daemon=True)
        ending.start()
        with suppress(EOFError, ConnectionError):
            while True:
                player.take(channel.next_order())
        ending.join()  # a return would end the process before resources are closed and children killed


@contextmanager
def _open_player(channel: WorkerChannel, setup: WorkerSetup) -> Iterator[Player]:
    if setup.shared:
        from ajet.rollout.isolation.shared_player import open_shared_player

        with open_shared_player(channel, setup) as player:
            yield player
    else:
        from ajet.rollout.isolation.single_player import SinglePlayer

        yield SinglePlayer(channel, setup)


def _serve_control(control: int, parent: int, player: Player) -> None:
    """Answer LOCATE requests until CLOSE or the end of the parent. Then close the attempts' resources.

    After CLOSE this process replies CLOSED and stops until it is killed. If the parent is gone, the process kills its
    descendants and itself.
    """
    while (received := os.read(control, 1)) == LOCATE:
        number = int.from_bytes(os.read(control, ID_BYTES), "big")
        with suppress(OSError):  # the other process is gone: the next read returns no byte
            os.write(control, f"{player.locate(number)}\n".encode(errors="replace"))
    until = time.monotonic() + GRACE
    for closing in player.close_resources():
        closing.join(max(0.0, until - time.monotonic()))
    if received:
        with suppress(OSError):
            wake_every_second()
            os.write(control, CLOSED)
            _stop_until_orphaned(parent)
    end_descendants(psutil.Process())
    os.killpg(os.getpgrp(), signal.SIGKILL)


def wake_when_alone() -> None:
    """Continue this process when the parent ends (Linux).

    The parent stops this process before killing it. The parent may be killed in between, by a second Ctrl-C or a
    signal.
    """
    if sys.platform.startswith("linux"):
        signal.signal(signal.SIGCONT, lambda *_: None)  # without a handler the timer's signal is dropped
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


class _SignalEvent(ctypes.Structure):
    """sigevent of <signal.h> on Linux. The second part defines the third: 0 is SIGEV_SIGNAL."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("rest", ctypes.c_int * 12),
    )


def wake_every_second() -> None:
    """Have a system timer send SIGCONT each second (Linux).

    The signal of the parent's end, or of the end of its threads, may come just before this process stops. Without the
    timer the process would stop for ever.
    """
    if not sys.platform.startswith("linux"):
        return
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = _SignalEvent(None, signal.SIGCONT, 0)
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        libc.timer_settime(timer, 0, (ctypes.c_long * 4)(1, 0, 1, 0), None)  # interval, and first time


def _stop_until_orphaned(parent: int) -> None:
    """Stop until the parent is gone. The waking signal also comes when only the parent's thread ends."""
    while os.getppid() == parent:
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main()
