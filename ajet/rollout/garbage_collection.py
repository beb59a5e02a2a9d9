"""Python's garbage collector, kept from walking over modules and waiting episodes again and again.

Invariant: collections go on, at longer intervals, while a play lasts; afterwards the thresholds are what they were.
Ten thousand waiting episodes hold millions of objects, none of them garbage: with Python's own thresholds almost half
of the CPU time of such a rollout went into looking at them (benchmarks/bench_rollout.py).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 50, 100)
_lock = threading.Lock()
_users = 0
_before = gc.get_threshold()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within the block (and others that overlap it) Python collects reference cycles rarely."""
    global _users, _before
    with _lock:
        if not _users:
            _before = gc.get_threshold()
            if gc.isenabled() and _before[0]:
                gc.set_threshold(*THRESHOLDS)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                gc.set_threshold(*_before)


@contextmanager
def frozen_start() -> Iterator[None]:
    """Within the block collections leave alone what the process has made before: modules and parts are half a million
    objects, over which a full collection walks for 0.3 s while no client is answered."""
    if gc.get_freeze_count():  # a backbone has done so, and undoes it
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
