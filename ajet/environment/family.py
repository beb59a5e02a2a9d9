"""Ends a process together with all descendants.

Invariants: only descendants of the leader are ended. The leader is stopped meanwhile and starts nothing more. On Linux,
with `adopt_orphans`, processes outside the group or session remain descendants.
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

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
PATIENCE = 10.0
"""Time limit in seconds for stopping a family. Later descendants may be missed."""
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_family(leader: int, grace: float) -> None:
    """End the descendants of `leader`, with `grace` seconds for SIGTERM, then `leader` and its process group. The pid
    must not be reaped yet."""
    head = psutil.Process(leader)
    with suppress(*_GONE):
        head.suspend()
    _act_on_all(members(head), psutil.Process.terminate)
    deadline = time.monotonic() + grace
    while members(head) and time.monotonic() < deadline:
        time.sleep(0.01)
    end_descendants(head)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_tree(leader: int) -> None:
    """Kill `leader` and its descendants. The pid must not be reaped yet."""
    try:
        head = psutil.Process(leader)
    except psutil.NoSuchProcess:
        return
    _act_on_all([head], psutil.Process.suspend)
    end_descendants(head)
    _act_on_all([head], psutil.Process.kill)


def end_descendants(head: psutil.Process) -> None:
    """Stop all descendants first (a stopped process cannot start another), then kill them."""
    stopped: set[psutil.Process] = set()
    deadline = time.monotonic() + PATIENCE
    while (fresh := members(head) - stopped) and time.monotonic() < deadline:
        _act_on_all(fresh, psutil.Process.suspend)
        stopped |= fresh
    _act_on_all(stopped, psutil.Process.kill)


def members(head: psutil.Process) -> set[psutil.Process]:
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
