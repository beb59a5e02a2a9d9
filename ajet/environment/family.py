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
    """Make this process the parent of its orphaned descendants, so that they remain descendants (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_family(leader: int, grace: float) -> None:
    """End the descendants of a process, then the process itself and its process group.

    The leader is stopped first, so that it starts nothing more. Descendants get SIGTERM, and SIGKILL after `grace`
    seconds. The leader must not be reaped yet, since its pid could belong to another process then.

    Args:
        leader: Process id.
    """
    leader_process = psutil.Process(leader)
    with suppress(*_GONE):
        leader_process.suspend()
    _act_on_all(members(leader_process), psutil.Process.terminate)
    deadline = time.monotonic() + grace
    while members(leader_process) and time.monotonic() < deadline:
        time.sleep(0.01)
    end_descendants(leader_process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_tree(leader: int) -> None:
    """Kill the process `leader` and its descendants. It must not be reaped yet, or its pid may be another's."""
    try:
        leader_process = psutil.Process(leader)
    except psutil.NoSuchProcess:
        return
    _act_on_all([leader_process], psutil.Process.suspend)
    end_descendants(leader_process)
    _act_on_all([leader_process], psutil.Process.kill)


def end_descendants(head: psutil.Process) -> None:
    """Kill all descendants of a process. All are stopped first, since a stopped process cannot start another."""
    stopped: set[psutil.Process] = set()
    deadline = time.monotonic() + PATIENCE
    while (running := members(head) - stopped) and time.monotonic() < deadline:
        _act_on_all(running, psutil.Process.suspend)
        stopped |= running
    _act_on_all(stopped, psutil.Process.kill)


def members(head: psutil.Process) -> set[psutil.Process]:
    """Return the living descendants of a process; none if the process has ended."""
    try:
        descendants = head.children(recursive=True)
    except _GONE:
        return set()
    return {process for process in descendants if _is_alive(process)}


def _is_alive(process: psutil.Process) -> bool:
    """Return True unless the process has ended; a zombie has ended, but is not reaped."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False


def _act_on_all(processes: Iterable[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    """Call `act` with each process, and ignore processes that have ended."""
    for process in processes:
        with suppress(*_GONE):
            act(process)
