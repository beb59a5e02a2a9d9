"""A user of its own for a sandbox, where this process may choose one (it is root, with the rights of root).

Invariant: nobody else has that number but by a chance of one in a million; without one of its own RLIMIT_NPROC is void
for root, and files of mode 600 are open.
"""

from __future__ import annotations

import os
import platform
import secrets
from contextlib import suppress
from pathlib import Path

_WANTED = (1_879_048_192, 1 << 20)
"""First, and how many: above what distributions, containers and directories of users give out."""
_FEW = (20_000, 40_000)
"""In a user namespace that maps the usual 65536."""
SYS_ADMIN, SET_UID = 21, 7


def choose_uid() -> int | None:
    """A user id that nobody has; None for a process that must stay what it is."""
    if os.geteuid() != 0 or not has_capability(SET_UID):
        return None
    mapped = [tuple(map(int, row.split())) for row in Path("/proc/self/uid_map").read_text().splitlines()]
    for first, count in (_WANTED, _FEW):
        if any(start <= first and first + count <= start + size for start, _, size in mapped):
            return first + secrets.randbelow(count)
    return None


def choose_container_uid() -> int:
    """A user id that is mapped whoever runs the engine: this user, root, or root of a user namespace."""
    first, count = _FEW
    return first + secrets.randbelow(count)


def has_capability(number: int) -> bool:
    """Whether it is in effect."""
    for row in Path("/proc/self/status").read_text().splitlines():
        if row.startswith("CapEff:"):
            return bool(int(row.split()[1], 16) >> number & 1)
    return False


def has_namespace_process_count() -> bool:
    """Whether RLIMIT_NPROC counts the processes of a user within a user namespace alone (Linux 5.14)."""
    version = platform.release().split("-")[0].split(".")
    return tuple(int(each) for each in version[:2] if each.isdecimal()) >= (5, 14)


def count_processes() -> int:
    """How many processes and threads this user has, which RLIMIT_NPROC counts without a user of a sandbox's own."""
    mine, count = os.geteuid(), 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == mine:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
