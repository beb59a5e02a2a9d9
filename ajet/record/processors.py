"""Number of usable processors: CPU affinity and control group quotas.

Invariant: all thread and worker pools use the same count. A container limited to two of 64 processors has a quota
(`cpu.max`, or `cpu.cfs_quota_us` in version 1) and the affinity of all 64.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

ROOT = Path("/")
"""Where /proc and /sys are."""


def usable_cpus() -> int | None:
    """Return the number of usable logical processors, at least 1, or None if unknown."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cpu_quota()
    return allowed if quota is None else min(allowed or quota, quota)


def cpu_quota() -> int | None:
    """Return the number of whole processors that control groups grant, at least 1. None without a quota."""
    quotas = [quota / period for quota, period in _list_quotas() if quota > 0 and period > 0]
    return max(1, math.floor(min(quotas))) if quotas else None


def _list_quotas() -> Iterator[tuple[int, int]]:
    """Yield (microseconds granted, period) of each control group of this process and of the parent groups."""
    mount = ROOT / "sys/fs/cgroup"
    try:
        lines = (ROOT / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, controllers, path in [*groups, ["0", "", "/"]]:  # a container may see its own group as the root
        if controllers and "cpu" not in controllers.split(","):
            continue
        # The path of a group outside the container has "..".
        group = PurePosixPath(path.lstrip("/") if "/.." not in path else "")
        for each in (group, *group.parents):
            if not controllers:
                yield from _read_quota(mount / each / "cpu.max")
            else:
                folder = mount / controllers / each
                yield from _read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _read_quota(*files: Path) -> Iterator[tuple[int, int]]:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        yield int(quota), int(period)
    except (OSError, ValueError):  # no quota is set: the file is missing, or says "max"
        return


def count_cores() -> int:
    """Return the number of physical cores within affinity and quota."""
    count = count_allowed_cores()
    return min(count, cpu_quota() or count)


def count_allowed_cores() -> int:
    """Return the number of physical cores within the affinity. A quota may grant the time of fewer."""
    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return max(1, min(physical, math.ceil(allowed * physical / logical)))
