"""The lock of a run directory: which process writes here.

Invariant: at most one live process holds a folder. The lock names it by process id, start time and host, so that a
process id used again by somebody else is never taken for the holder, and a dead holder's lock is taken over. The
file is only read and changed under an exclusive `flock` on its neighbour, so that two starters cannot both win.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically

FILE = "lock.json"
GUARD = ".lock"
TOLERANCE_S = 2.0
"""Start times of one process, read twice, may differ by this much when the clock was set in between."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, unambiguously."""

    pid: int
    started: float
    """Seconds since the epoch, as the operating system says."""
    host: str

    @classmethod
    def this(cls) -> Holder:
        """This process."""
        return cls(os.getpid(), psutil.Process().create_time(), socket.gethostname())

    def alive(self) -> bool:
        """True while it runs; a process on another host cannot be seen from here and counts as alive."""
        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) <= TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class RunLock:
    """The lock of one folder. `take` answers None on success, else who holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mine: Holder | None = None

    @property
    def path(self) -> Path:
        """The file that names the holder."""
        return self.folder / FILE

    def take(self) -> Holder | None:
        """Take the lock, or answer its live holder. The folder is made when it is missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._guarded():
            holder = self.holder()
            if holder is not None and holder.alive():
                return holder
            self._mine = Holder.this()
            write_atomically(self.path, json.dumps(asdict(self._mine)) + "\n")
        return None

    def holder(self) -> Holder | None:
        """Who the file names, dead or alive; None without a readable file."""
        try:
            return Holder(**read_json(self.path))
        except (OSError, ValueError, TypeError):
            return None

    def release(self) -> None:
        """Give the lock back if it is still ours. Idempotent."""
        if self._mine is None:
            return
        with self._guarded():
            if self.holder() == self._mine:
                self.path.unlink()
        self._mine = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with (self.folder / GUARD).open("a") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield
