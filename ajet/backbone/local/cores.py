"""How many cores a run has. Apart from `machine`, so that a start can be planned before torch is loaded."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil


def cores() -> int:
    """Physical cores within this process's affinity and its control group's quota."""
    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    count = max(1, min(physical, math.ceil(allowed * physical / logical)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = max(1, min(count, math.floor(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return count
