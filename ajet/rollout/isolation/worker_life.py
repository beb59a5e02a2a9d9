"""How a worker begins and ends, whatever it plays.

Invariants: it serves until its channel closes; it ends its whole family when the process that started it is gone,
however that ended and whatever this one was doing, and closes what its attempts opened before that; a process that user
code forked from it ends where that code ends. Arguments of a worker: the descriptors of the channel, and of a socket
that lives as long as the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn, Protocol, TypeVar

import psutil

from ajet.environment.family import adopt_orphans, end_descendants
from ajet.rollout.failure import EpisodeFailed
from ajet.rollout.isolation.channel import Message
from ajet.rollout.isolation.messages import Home, decode_home
from ajet.rollout.isolation.worker_handle import CLOSED, GRACE, NUMBER, WHERE

PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG."""


class Hears(Protocol):
    """This process' end of the channel."""

    def hear(self) -> Message:
        """The next message. Raises EOFError or OSError when the other side is gone."""
        ...


class Plays(Protocol):
    """The player of attempts in this worker."""

    def hear(self, message: Message) -> None:
        """Hear a message of the other side."""
        ...

    def stands(self, number: int) -> str:
        """The line at which the person's code stands in the attempt of that number."""
        ...

    def close_beside(self) -> Sequence[threading.Thread]:
        """Close what is open, beside attempts that may hang."""
        ...


L = TypeVar("L", bound=Hears)


def serve(line_of: Callable[[int], L], player_of: Callable[[L, Home], Plays]) -> None:
    """The whole life of a worker. `line_of` gets the channel's descriptor, `player_of` that line and its home."""
    line = line_of(int(sys.argv[1]))
    life, parent = int(sys.argv[2]), os.getppid()
    os.set_inheritable(life, False)
    adopt_orphans()
    _wake_when_alone()
    player = player_of(line, decode_home(line.hear().body))
    ending = threading.Thread(target=_end_when_told, args=(life, parent, player), daemon=True)
    ending.start()
    with suppress(EOFError, ConnectionError):
        while True:
            player.hear(line.hear())
    ending.join()  # the other side is gone: to return would cut short what closes things and ends what was started


def _end_when_told(life: int, parent: int, plays: Plays) -> None:
    """Say where an attempt stands, as often as that is asked. When the process that started this one ends it, or is
    gone: what the attempts here opened is closed. Then that process ends this one, which says that it may and stands
    still, or this one ends itself."""
    while (told := os.read(life, 1)) == WHERE:
        number = int.from_bytes(os.read(life, NUMBER), "big")
        with suppress(OSError):  # it is gone: the next read says so
            os.write(life, f"{plays.stands(number)}\n".encode(errors="replace"))
    until = time.monotonic() + GRACE
    for closing in plays.close_beside():
        closing.join(max(0.0, until - time.monotonic()))
    if told:
        with suppress(OSError):
            _wake_every_second()
            os.write(life, CLOSED)
            _stand_still(parent)
    end_descendants(psutil.Process())
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _wake_when_alone() -> None:
    """Who ends this one stops it first, and may be gone before the rest: by a second Ctrl-C, or a signal. Then it is to
    go on, and to end itself (Linux)."""
    if sys.platform.startswith("linux"):
        signal.signal(signal.SIGCONT, lambda *_: None)  # a timer's is dropped where nobody hears it
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


class _Event(ctypes.Structure):
    """sigevent of <signal.h> on Linux, whose third part depends on the second: 0 is SIGEV_SIGNAL."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("rest", ctypes.c_int * 12),
    )


def _wake_every_second() -> None:
    """The signal of the parent's end may come just before this process stops, as may those of its threads, which end
    one by one: it would stand still for ever. So a timer of the system sends another one each second (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    event = _Event(None, signal.SIGCONT, 0)
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
        libc.timer_settime(timer, 0, (ctypes.c_long * 4)(1, 0, 1, 0), None)  # its interval, and its first time


def _stand_still(parent: int) -> None:
    """Until that process is gone. The signal that wakes comes, too, when the thread is that started this one."""
    while os.getppid() == parent:
        os.kill(os.getpid(), signal.SIGSTOP)


@contextmanager
def forks_end_here(owner: int) -> Iterator[None]:
    """A process that user code forked leaves this block by ending, as it would at the end of a program. No `finally`
    of ours runs in it: the event loop and the clients that it has copies of are its parent's."""
    try:
        yield
    except BaseException as ending:
        if os.getpid() != owner:
            end_fork(ending)
        raise
    if os.getpid() != owner:
        end_fork(None)


def end_fork(ending: BaseException | None) -> NoReturn:
    """End this process, which user code forked, as what it came back with says."""
    cause = ending.__cause__ if isinstance(ending, EpisodeFailed) and ending.__cause__ is not None else ending
    if cause is None:
        os._exit(0)
    if isinstance(cause, SystemExit):
        code = 0 if cause.code is None else cause.code if isinstance(cause.code, int) else 1
        os._exit(code & 0xFF)
    with suppress(OSError, ValueError):
        traceback.print_exception(cause)
    os._exit(1)
