"""How many cores a run has. Apart from `machine`, so that a start can be planned before torch is loaded."""

from __future__ import annotations

import math
import os

import psutil

from ajet.record.processors import cpu_quota


def cores() -> int:
    """Physical cores within this process's affinity and its control group's quota."""
    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    count = max(1, min(physical, math.ceil(allowed * physical / logical)))
    return min(count, cpu_quota() or count)
