"""Number of usable processors (CPU affinity and control group quotas), and the processor time used.

Invariant: all thread and worker pools use the same count. A container limited to two of 64 processors has a quota
(`cpu.max`, or `cpu.cfs_quota_us` in version 1) and the affinity of all 64.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

ROOT = Path("/")
"""Where /proc and /sys are."""


def usable_cpus() -> int | None:
    """Return how many logical processors this process may use by affinity and quota, at least 1, or None if unknown."""
    affinity_count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cpu_quota()
    return affinity_count if quota is None else min(affinity_count or quota, quota)


def used_processor_seconds() -> float:
    """Return the processor seconds used so far by this process and all its child processes, ended ones included."""
    this_process = psutil.Process()
    seconds = 0.0
    for process in (this_process, *this_process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended since it was listed
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def cpu_quota() -> int | None:
    """Return how many whole processors the control groups of this process grant (at least 1), or None without quota."""
    quotas = [quota / period for quota, period in _list_quotas() if quota > 0 and period > 0]
    return max(1, math.floor(min(quotas))) if quotas else None


def _list_quotas() -> Iterator[tuple[int, int]]:
    """Yield (granted microseconds, period in microseconds) of each control group of this process and its parents."""
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
        for ancestor in (group, *group.parents):
            if not controllers:
                yield from _read_quota(mount / ancestor / "cpu.max")  # control groups v2
            else:
                folder = mount / controllers / ancestor
                yield from _read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")  # control groups v1


def _read_quota(*files: Path) -> Iterator[tuple[int, int]]:
    """Yield (quota, period) in microseconds from a file with both or from two files, or nothing without a quota."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        yield int(quota), int(period)
    except (OSError, ValueError):  # no quota is set: the file is missing, or says "max"
        return


def count_cores() -> int:
    """Return how many physical cores this process may use, by affinity and quota."""
    count = count_allowed_cores()
    return min(count, cpu_quota() or count)


def count_allowed_cores() -> int:
    """Return how many physical cores the affinity of this process covers. A quota may grant the time of fewer."""
    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    affinity_count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return max(1, min(physical, math.ceil(affinity_count * physical / logical)))
