"""Identity of a process: a pid may be reused, clocks change, containers count their own pids.

Invariant: a live process matches a record only if pid and start agree within the same boot, kernel and pid namespace.
The start is counted in kernel ticks since boot and independent of clocks. Systems without /proc compare seconds since
the epoch with a tolerance.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import psutil

TOLERANCE_S = 2.0
"""Tolerance between two readings of a start time in seconds; the clock may have been set in between."""
Whereabouts = Literal["here", "ended", "elsewhere"]
"""Location of a recorded process: visible from here, ended with an earlier boot, or not visible."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The pid of a process with what tells it from other processes of the same pid. None: unknown."""

    pid: int
    started: float
    """Seconds since the epoch, from the operating system."""
    host: str
    ticks: int | None = None
    """Its start in the kernel's clock ticks since boot."""
    boot: str | None = None
    """Boot id of the kernel."""
    space: str | None = None  # pid namespace of `pid`

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of a live process of this machine. Raises psutil.NoSuchProcess."""
        started = psutil.Process(pid).create_time()
        return cls(pid, started, socket.gethostname(), read_start_ticks(pid), boot_id(), pid_space())

    @classmethod
    def recorded(cls, entry: Mapping[str, Any]) -> ProcessIdentity:
        """Read a recorded identity. Raises ValueError, KeyError or TypeError for an invalid entry."""
        ticks = entry.get("ticks")
        return cls(
            int(entry["pid"]),
            float(entry["started"]),
            str(entry.get("host", "")),
            int(ticks) if ticks is not None else None,
            entry.get("boot"),
            entry.get("space"),
        )

    @property
    def place(self) -> Whereabouts:
        """Where the process is: "here", "elsewhere" (not visible from here), or "ended" with an earlier boot."""
        if self.boot is None or boot_id() is None:
            return "here" if self.host == socket.gethostname() else "elsewhere"
        if self.boot == boot_id():
            return "here" if self.space == pid_space() else "elsewhere"
        return "ended" if self.host == socket.gethostname() else "elsewhere"

    def process(self) -> psutil.Process | None:
        """Return the process if it can be seen from here and is alive, else None."""
        if self.place != "here":
            return None
        try:
            process = psutil.Process(self.pid)
            if self.ticks is not None:
                same = read_start_ticks(self.pid) == self.ticks
            else:
                same = abs(process.create_time() - self.started) <= TOLERANCE_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def alive(self) -> bool:
        """True while the process runs. A process that cannot be seen from here counts as alive."""
        return self.place == "elsewhere" or self.process() is not None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """Return the id shared by all processes of one boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


@lru_cache(maxsize=1)
def pid_space() -> str | None:
    """Return the pid namespace of this process."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def read_start_ticks(pid: int) -> int | None:
    """Return the start of a process in kernel ticks since boot, or None without the process or without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
