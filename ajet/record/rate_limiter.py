"""RateLimiter: limits repeated log lines.

Invariant: of two requests for one name within `every` seconds only the first is due. Thread-safe; a forked child starts
with an empty state and a new lock, since another thread of the parent may hold the old one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable
from weakref import WeakSet


class RateLimiter:
    """Limits how often a log line of the same name is written. Thread-safe, also in a forked process."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s, self._lock = interval_s, threading.Lock()
        self._last_times: dict[Hashable, float] = {}
        _limiters.add(self)

    def is_due(self, name: Hashable = None) -> bool:
        """Return True if no line of this name was logged within the interval. The call then counts as the line."""
        now = time.monotonic()
        with self._lock:
            self._last_times = {
                known: logged for known, logged in self._last_times.items() if now - logged < self._interval_s
            }
            if name in self._last_times:
                return False
            self._last_times[name] = now
            return True

    def _reset_state(self) -> None:
        """Forget all lines, and make a new lock: in a forked process another thread's lock would never be released."""
        self._lock, self._last_times = threading.Lock(), {}


_limiters: WeakSet[RateLimiter] = WeakSet()


def _reset_after_fork() -> None:
    for limiter in _limiters:
        limiter._reset_state()


os.register_at_fork(after_in_child=_reset_after_fork)
