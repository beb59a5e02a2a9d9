"""Waiting for what another thread or process does.

Invariant: an event is waited for, with an end that no busy machine reaches; nothing is concluded from how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LOOK_S = 0.01


def until(true: Callable[[], object], *, run: Any = None, seconds: float = 300.0) -> bool:
    """Whether it becomes true in time, and before `run`, a process, ends."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end or (run is not None and run.poll() is not None):
            return bool(true())
        time.sleep(LOOK_S)
    return True
