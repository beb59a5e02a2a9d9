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
    """A process id with what distinguishes the process from others that have or had the same id. None: unknown."""

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
        """Return the identity stored in a record. Raises ValueError, KeyError or TypeError for an invalid entry."""
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
        """Where the process is, seen from this one: "here", "elsewhere" (not visible), or "ended" with an earlier boot.

        Visible are processes of the same boot and pid namespace. Without /proc, the host's name decides.
        """
        if self.boot is None or boot_id() is None:
            return "here" if self.host == socket.gethostname() else "elsewhere"
        if self.boot == boot_id():
            return "here" if self.space == pid_space() else "elsewhere"
        return "ended" if self.host == socket.gethostname() else "elsewhere"

    def process(self) -> psutil.Process | None:
        """Return the process if it is visible from here and alive, else None. A reused pid is another process."""
        if self.place != "here":
            return None
        try:
            process = psutil.Process(self.pid)
            if self.ticks is not None:
                is_same = read_start_ticks(self.pid) == self.ticks
            else:
                is_same = abs(process.create_time() - self.started) <= TOLERANCE_S
            return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def alive(self) -> bool:
        """Return True while the process runs. A process that is not visible from here counts as alive."""
        return self.place == "elsewhere" or self.process() is not None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """Return the id that the kernel gives to the present boot, or None on a system without /proc."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


@lru_cache(maxsize=1)
def pid_space() -> str | None:
    """Return the pid namespace of this process, or None on a system without /proc."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def read_start_ticks(pid: int) -> int | None:
    """Return the start of a process in kernel ticks since boot, or None without the process or without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Field 22, starttime; the name in field 2 may contain blanks.
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
