"""What a process hands from one attempt to the next: its folder, environment, threads, children, standard output.

Invariant: a worker plays another attempt only if the one before it left all of these as it found them (DESIGN decision
21). Threads and children that are about to end are given a moment to do so.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass

import psutil

SETTLE = 0.3
"""Seconds that threads and children get to end after an attempt."""
NAMED = 8
"""Variables, threads or children named in one sentence."""


@dataclass(frozen=True)
class Surroundings:
    """A process' surroundings, as they were at one moment."""

    folder: str | None
    environment: dict[str, str]
    threads: frozenset[threading.Thread]
    children: frozenset[int]
    output: tuple[tuple[int, int] | None, ...]

    @classmethod
    def now(cls) -> Surroundings:
        """The surroundings of this process now."""
        return cls(
            _folder(), dict(os.environ), frozenset(threading.enumerate()), frozenset(_children()), _standard_output()
        )

    def left(self) -> list[str]:
        """The changes since, in words; empty where there are none. Waits for what is about to end."""
        until = time.monotonic() + SETTLE
        while (changes := self._changes()) and not self._lasting and time.monotonic() < until:
            time.sleep(0.01)
        return changes

    @property
    def _lasting(self) -> bool:
        """Whether something changed that waiting does not mend."""
        return _folder() != self.folder or os.environ != self.environment or _standard_output() != self.output

    def _changes(self) -> list[str]:
        found = []
        if _folder() != self.folder:
            found.append(f"the working directory ({_folder() or 'deleted'})")
        now = dict(os.environ)
        names = sorted(name for name in {*now, *self.environment} if now.get(name) != self.environment.get(name))
        if names:
            found.append(f"the environment ({_listed(names)})")
        threads = [thread.name for thread in threading.enumerate() if thread not in self.threads]
        if threads:
            found.append(f"threads ({_listed(threads)})")
        children = [str(pid) for pid in sorted(set(_children()) - self.children)]
        if children:
            found.append(f"processes ({_listed(children)})")
        if _standard_output() != self.output:
            found.append("standard output")
        return found


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _standard_output() -> tuple[tuple[int, int] | None, ...]:
    """Which files standard output and error are; None for a closed one."""
    found: list[tuple[int, int] | None] = []
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            about = os.fstat(number)
            found.append(None if stream is None or stream.closed else (about.st_dev, about.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _children() -> list[int]:
    """The living children of this process; those that have ended are taken in."""
    living = []
    for child in psutil.Process().children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                living.append(child.pid)
                continue
            os.waitpid(child.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return living


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
