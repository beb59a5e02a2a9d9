"""Seldom: what would be said again and again is said once in a while.

Invariant: of two times that lie less than `every` seconds apart only the first is due, for each name by itself. From
any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable


class Seldom:
    """Whether something is to be said now. Names whose time has passed are forgotten."""

    def __init__(self, every: float) -> None:
        """`every`: seconds."""
        self._every, self._lock = every, threading.Lock()
        self._said: dict[Hashable, float] = {}

    def due(self, name: Hashable = None) -> bool:
        """Whether it is to be said now; then it counts as said."""
        now = time.monotonic()
        with self._lock:
            self._said = {each: at for each, at in self._said.items() if now - at < self._every}
            if name in self._said:
                return False
            self._said[name] = now
            return True

    def begin_anew(self) -> None:
        """Forget what was said. In a fork, where nobody would let go of a lock that another thread held."""
        self._lock, self._said = threading.Lock(), {}
