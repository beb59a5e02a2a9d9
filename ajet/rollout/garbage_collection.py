"""Fewer runs of Python's garbage collector, which would scan modules and waiting episodes again and again.

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
    """Collect reference cycles rarely within the block, and within others that overlap it."""
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
    """Exclude objects that exist already from collections within the block.

    Modules and parts are half a million objects: a full collection scans them for 0.3 s while no client is answered.
    """
    if gc.get_freeze_count():  # a backbone has done so, and undoes it
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
