"""What a tree of processes, and a folder, use. What has ended uses nothing."""

from __future__ import annotations

import os


def memory(tree: list[int]) -> int:
    """Bytes of memory, what is shared counted once (PSS); a process that hides that counts with all it holds."""
    return sum(_one(pid) for pid in tree)


def _one(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for row in rollup:
                if row.startswith("Pss:"):
                    return int(row.split()[1]) * 1024
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def disk(folder: str, enough: int) -> int:
    """Bytes of all files below `folder`, counted until they are more than `enough`; no link is followed."""
    total, todo = 0, [folder]
    while todo and total <= enough:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512 + 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except OSError:
            continue
    return total


_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
"""Of a container, as it sees them: version 2 and version 1."""


def limit() -> int:
    """Bytes of memory that the control group of a container gives it; 0 where it sets none or cannot be seen."""
    for path in (f"{_GROUPS[0]}/memory.max", f"{_GROUPS[1]}/memory.limit_in_bytes"):
        try:
            with open(path) as told:
                text = told.read().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else 0
    return 0


def killed() -> int:
    """How many processes the kernel ended in a container for want of memory."""
    for path in (f"{_GROUPS[0]}/memory.events", f"{_GROUPS[1]}/memory.oom_control"):
        try:
            with open(path) as told:
                for row in told:
                    if row.startswith("oom_kill "):
                        return int(row.split()[1])
        except OSError:
            continue
    return 0
