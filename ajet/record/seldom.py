"""RateLimiter: what would be said again and again is said once in a while.

Invariant: of two times that lie less than `every` seconds apart only the first is due, for each name by itself. From
any thread; a fork begins anew, for nobody there would let go of a lock that another thread held.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from weakref import WeakSet


class RateLimiter:
    """Whether something is to be said now. Names whose time has passed are forgotten."""

    def __init__(self, every: float) -> None:
        """`every`: seconds."""
        self._every, self._lock = every, threading.Lock()
        self._last_times: dict[Hashable, float] = {}
        _limiters.add(self)

    def is_due(self, name: Hashable = None) -> bool:
        """Whether it is to be said now; then it counts as said."""
        now = time.monotonic()
        with self._lock:
            self._last_times = {each: at for each, at in self._last_times.items() if now - at < self._every}
            if name in self._last_times:
                return False
            self._last_times[name] = now
            return True

    def _reset_state(self) -> None:
        self._lock, self._last_times = threading.Lock(), {}


_limiters: WeakSet[RateLimiter] = WeakSet()


def _reset_after_fork() -> None:
    for each in _limiters:
        each._reset_state()


os.register_at_fork(after_in_child=_reset_after_fork)
