"""Which process a number means: a process id is used again, a clock is set, a container counts its own.

Invariant: a process is taken for the recorded one only if its id and its start agree, both of the same boot of the same
kernel and the same process namespace; its start is counted in the kernel's ticks since boot, which no clock moves.
Systems without /proc have seconds since the epoch alone, compared with a tolerance.
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
"""Start times in seconds of one process, read twice, may differ by this much when the clock was set in between."""
Whereabouts = Literal["here", "ended", "elsewhere"]
"""Where a recorded process can be: among those that are seen from here; gone with an earlier boot; out of sight."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, unambiguously. None: not known."""

    pid: int
    started: float
    """Seconds since the epoch, as the operating system says."""
    host: str
    ticks: int | None = None
    """Its start in the kernel's clock ticks since boot."""
    boot: str | None = None
    """Which boot of which kernel."""
    space: str | None = None
    """The process namespace in which `pid` counts."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """A process of this machine. Raises psutil.NoSuchProcess."""
        started = psutil.Process(pid).create_time()
        return cls(pid, started, socket.gethostname(), read_start_ticks(pid), boot_id(), pid_space())

    @classmethod
    def recorded(cls, entry: Mapping[str, Any]) -> ProcessIdentity:
        """What a record says. Raises ValueError, KeyError or TypeError for one that says nothing of the kind."""
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
        """Whether it can be looked for from here."""
        if self.boot is None or boot_id() is None:
            return "here" if self.host == socket.gethostname() else "elsewhere"
        if self.boot == boot_id():
            return "here" if self.space == pid_space() else "elsewhere"
        return "ended" if self.host == socket.gethostname() else "elsewhere"

    def process(self) -> psutil.Process | None:
        """The process, if it is here and lives."""
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
        """True while it runs; one that cannot be seen from here counts as alive."""
        return self.place == "elsewhere" or self.process() is not None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """An id that every process of one kernel shares from boot to shutdown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


@lru_cache(maxsize=1)
def pid_space() -> str | None:
    """The process namespace of this process."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def read_start_ticks(pid: int) -> int | None:
    """Return when a process began, in the kernel's ticks since boot; None without such a process, or without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None
