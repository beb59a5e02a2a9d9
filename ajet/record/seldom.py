"""Seldom: what would be said again and again is said once in a while.

Invariant: of two times that lie less than `every` seconds apart only the first is due, for each name by itself. From
any thread; a fork begins anew, for nobody there would let go of a lock that another thread held.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from weakref import WeakSet


class Seldom:
    """Whether something is to be said now. Names whose time has passed are forgotten."""

    def __init__(self, every: float) -> None:
        """`every`: seconds."""
        self._every, self._lock = every, threading.Lock()
        self._said: dict[Hashable, float] = {}
        _all.add(self)

    def due(self, name: Hashable = None) -> bool:
        """Whether it is to be said now; then it counts as said."""
        now = time.monotonic()
        with self._lock:
            self._said = {each: at for each, at in self._said.items() if now - at < self._every}
            if name in self._said:
                return False
            self._said[name] = now
            return True

    def _begin_anew(self) -> None:
        self._lock, self._said = threading.Lock(), {}


_all: WeakSet[Seldom] = WeakSet()


def _forked() -> None:
    for each in _all:
        each._begin_anew()


os.register_at_fork(after_in_child=_forked)
