"""User ids for sandboxes, one per sandbox, if this process may change its user (root with root's capabilities).

Invariant: the id is unused except for a chance of one in a million. Without a separate user, RLIMIT_NPROC has no effect
for root, and files of mode 600 are readable.
"""

from __future__ import annotations

import os
import platform
import secrets
from contextlib import suppress
from pathlib import Path

_WANTED = (1_879_048_192, 1 << 20)
"""First, and count: above the ranges of distributions, containers and user directories."""
_FEW = (20_000, 40_000)
"""For a user namespace with the usual 65536 ids."""
SYS_ADMIN, SET_UID = 21, 7


def choose_uid() -> int | None:
    """Return a random user id from a range that nobody else uses; None if this process cannot change its user.

    Inside a user namespace only mapped ids exist, so the range must be mapped (/proc/self/uid_map).
    """
    if os.geteuid() != 0 or not has_capability(SET_UID):
        return None
    id_ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for first_uid, count in (_WANTED, _FEW):
        if any(start <= first_uid and first_uid + count <= start + size for start, _, size in id_ranges):
            return first_uid + secrets.randbelow(count)
    return None


def choose_container_uid() -> int:
    """Return a user id that exists in containers of every kind of engine.

    Kinds: started by this user, by root, or by root of a user namespace.
    """
    first_uid, count = _FEW
    return first_uid + secrets.randbelow(count)


def has_capability(number: int) -> bool:
    """True if this process has the Linux capability of this number in effect."""
    for row in Path("/proc/self/status").read_text().splitlines():
        if row.startswith("CapEff:"):
            return bool(int(row.split()[1], 16) >> number & 1)
    return False


def has_namespace_process_count() -> bool:
    """True if the kernel counts RLIMIT_NPROC per user namespace (Linux 5.14 and later)."""
    version = platform.release().split("-")[0].split(".")
    return tuple(int(part) for part in version[:2] if part.isdecimal()) >= (5, 14)


def count_processes() -> int:
    """Return the number of this user's processes and threads, as RLIMIT_NPROC counts them."""
    own_uid, count = os.geteuid(), 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == own_uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
