"""A process and all that descend from it, ended together.

Invariants: nothing is ended that does not descend from the leader; while its family is ended the leader is stopped, so
that it starts nothing more, and on Linux, where it takes in orphans (`adopt_orphans`), what left its process group or
session is still its descendant.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER."""
PATIENCE = 10.0
"""Seconds in which a family is stopped; what starts others faster than that is ended as far as it is known."""
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux; elsewhere nothing changes)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_family(leader: int, grace: float) -> None:
    """End what descends from `leader`, politely for `grace` seconds, and then `leader` with its process group. Its id
    must not have been given back to the system yet."""
    head = psutil.Process(leader)
    with suppress(*_GONE):
        head.suspend()
    _act_on_all(members(head), psutil.Process.terminate)
    until = time.monotonic() + grace
    while members(head) and time.monotonic() < until:
        time.sleep(0.01)
    end_descendants(head)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_tree(leader: int) -> None:
    """Kill `leader` and what descends from it. Its id must not have been given back to the system yet."""
    try:
        head = psutil.Process(leader)
    except psutil.NoSuchProcess:
        return
    _act_on_all([head], psutil.Process.suspend)
    end_descendants(head)
    _act_on_all([head], psutil.Process.kill)


def end_descendants(head: psutil.Process) -> None:
    """Stop all, so that none starts another meanwhile, then kill all."""
    stopped: set[psutil.Process] = set()
    until = time.monotonic() + PATIENCE
    while (fresh := members(head) - stopped) and time.monotonic() < until:
        _act_on_all(fresh, psutil.Process.suspend)
        stopped |= fresh
    _act_on_all(stopped, psutil.Process.kill)


def members(head: psutil.Process) -> set[psutil.Process]:
    """The living descendants."""
    try:
        below = head.children(recursive=True)
    except _GONE:
        return set()
    return {process for process in below if _is_alive(process)}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False


def _act_on_all(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(*_GONE):
            act(process)
