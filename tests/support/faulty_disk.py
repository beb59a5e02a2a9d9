"""A process whose writes fail, break off in the middle or are its last, by one seed.

Who is killed writes nothing more, whatever code of it still runs: that of a real process would not.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from ajet.gateway import recorder, session
from ajet.rollout import breaker
from ajet.rollout.served import deadlines, episode, finisher, groups
from ajet.store import sqlite_store
from ajet.train.sources import served_batch
from tests.support.store_world import Connection, Faults, Killed, SqliteGround

Kind = Literal["files", "sqlite"]
LONG = 6_000.0
"""Seconds, more than any test takes: between two looks that the desk takes by itself, which is never."""


class ServeFaults(Faults):
    """What happens to a server; one that is dead does nothing at all."""

    def __init__(self, draw: random.Random, kind: Kind) -> None:
        super().__init__(draw, {"kill": (1.0, self._die), **(SqliteGround.happens() if kind == "sqlite" else FULL)})
        self.dead = False
        self.died: Any = lambda: None
        """Called once it is."""

    def point(self, *, statement: bool = False) -> None:
        """See Faults."""
        if self.dead:
            raise Killed
        super().point(statement=statement)

    def _die(self) -> None:
        self.dead = True
        self.died()
        raise Killed


def _full() -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


FULL = {"disk full": (1.0, _full)}


class File:
    """One that is written to: faults happen before, and within what is written."""

    def __init__(self, file: Any, faults: ServeFaults) -> None:
        self._file, self._faults = file, faults

    def write(self, data: bytes) -> int:
        """See io; of a write that fails some bytes are there."""
        alive = not self._faults.dead
        try:
            self._faults.point(statement=True)
        except (Killed, OSError):
            if alive:
                self._file.write(data[: self._faults.draw.randrange(len(data) + 1)])
            raise
        written: int = self._file.write(data)
        return written

    def truncate(self, size: int) -> int:
        """See io."""
        self._faults.point(statement=True)
        left: int = self._file.truncate(size)
        return left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def faulty(root: Path, faults: ServeFaults, clock: list[float]) -> Iterator[None]:
    """Within the block, writes below `root` and statements of SQLite are points, and all go by `clock`: of the wall,
    and the monotonic one."""
    connect, opens, wraps = sqlite_store.connect, Path.open, os.fdopen

    def opened(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if root not in self.parents or not set(mode) & set("wa+"):
            return opens(self, mode, *more, **named)
        faults.point(statement=True)
        return File(opens(self, mode, buffering=0), faults)

    def wrapped(number: int, mode: str = "r", *more: Any, **named: Any) -> Any:
        place = Path(os.readlink(f"/proc/self/fd/{number}"))
        if root.resolve() not in place.parents or not set(mode) & set("wa+"):
            return wraps(number, mode, *more, **named)
        try:
            faults.point(statement=True)
        except BaseException:
            os.close(number)
            raise
        return File(wraps(number, mode, buffering=0), faults)

    def pointed(does: Any) -> Any:
        def do(*given: Any, **named: Any) -> Any:
            faults.point(statement=True)
            return does(*given, **named)

        return do

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        patch.setattr(os, "fdopen", wrapped)
        for name in ("touch", "unlink", "mkdir"):
            patch.setattr(Path, name, pointed(getattr(Path, name)))
        for name in ("truncate", "replace"):
            patch.setattr(os, name, pointed(getattr(os, name)))
        patch.setattr(os, "fsync", pointed(lambda _: None))  # a kill takes nothing that is written
        patch.setattr(sqlite_store, "connect", lambda path: Connection(connect(path), faults))
        patch.setattr(sqlite_store.time, "time", lambda: clock[0])
        for room in (breaker, deadlines, episode, finisher, groups, recorder, served_batch, session):
            patch.setattr(room, "time", SimpleNamespace(time=lambda: clock[0], monotonic=lambda: clock[1]))
        patch.setattr(deadlines, "CHECK_INTERVAL", LONG)  # the world looks itself
        yield
