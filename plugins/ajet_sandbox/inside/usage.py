"""Measures memory and disk usage of a sandbox, where the kernel does not limit them."""

from __future__ import annotations

import os

_PIPE = 1 << 16
"""Capacity in bytes of a pipe with a fixed size."""
_QUEUES = ("/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6")


def measure_memory(tree: list[int], *, has_own_network: bool) -> int:
    """Return the memory of a process tree in bytes. Shared pages count once (PSS).

    Memory outside of address spaces counts too: a memfd with its size, a pipe and a socket with their largest capacity,
    and queued data of connections. A process whose open files cannot be read counts as a socket for each file it may
    open.

    Args:
        tree: process ids.
        has_own_network: True if the processes have a separate network namespace and own all its connections.
    """
    total = mapped_shared = 0
    files: dict[str, int] = {}
    for pid in tree:
        mapped, shared_bytes = _measure_mapped(pid)
        total += mapped
        mapped_shared += shared_bytes
        files.update(_measure_open_files(pid))
    memfds = sum(size for name, size in files.items() if name.startswith("memfd"))
    pipes_and_sockets = sum(size for name, size in files.items() if not name.startswith("memfd"))
    # The mapped part of the memfds is in the processes' PSS already.
    return total + max(0, memfds - mapped_shared) + pipes_and_sockets + (_measure_queues() if has_own_network else 0)


def _measure_mapped(pid: int) -> tuple[int, int]:
    """Return (bytes of mapped memory, bytes of it in shared memory files) of a process."""
    mapped = shared = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for row in rollup:
                name, _, value = row.partition(":")
                if name in ("Pss", "SwapPss", "Shared_Hugetlb", "Private_Hugetlb"):
                    mapped += int(value.split()[0]) * 1024
                elif name == "Pss_Shmem":
                    shared = int(value.split()[0]) * 1024
        return mapped, shared
    except OSError:
        pass
    # Without smaps_rollup, the resident set is counted, in which shared pages count in each process.
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), 0
    except (OSError, IndexError):
        return 0, 0


def _measure_open_files(pid: int) -> dict[str, int]:
    """Map each open memfd, pipe and socket of a process to its bytes.

    The keys identify the kernel's object, so one that several processes share counts once.
    """
    bytes_by_object: dict[str, int] = {}
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            folder = f"/proc/{pid}/task/{task}/fd"
            for number in os.listdir(folder):
                try:
                    link = os.readlink(f"{folder}/{number}")
                    if link.startswith("socket:"):
                        bytes_by_object[link] = _read_socket_size()
                    elif link.startswith("pipe:"):
                        bytes_by_object[link] = _PIPE
                    elif link.startswith("/memfd:"):
                        file = os.stat(f"{folder}/{number}")
                        bytes_by_object[f"memfd {file.st_ino}"] = file.st_blocks * 512  # in units of 512 bytes
                except FileNotFoundError:
                    continue  # it has just been closed
    except FileNotFoundError:
        pass  # it has ended
    except PermissionError:  # unreadable files: counted as a socket for each file that the process may open
        bytes_by_object[f"hidden {pid}"] = _read_file_limit(pid) * _read_socket_size()
    return bytes_by_object


def _read_socket_size() -> int:
    """Return the default buffer size of a socket in bytes."""
    try:
        with open("/proc/sys/net/core/wmem_default") as file:
            return int(file.read())
    except OSError:
        return 212_992


def _read_file_limit(pid: int) -> int:
    """Return how many files a process may open, or 0 if that cannot be read."""
    try:
        with open(f"/proc/{pid}/limits") as limits:
            return next(int(row.split()[3]) for row in limits if row.startswith("Max open files"))
    except (OSError, StopIteration, ValueError):
        return 0


def _measure_queues() -> int:
    """Return the queued bytes of connections in the current network namespace."""
    total = 0
    for path in _QUEUES:
        try:
            with open(path) as rows:
                next(rows, None)
                for row in rows:
                    send_queue, _, receive_queue = row.split()[4].partition(":")
                    total += int(send_queue, 16) + int(receive_queue, 16)
        except OSError:
            continue
    return total


def measure_disk(folder: str, enough: int) -> int:
    """Return the bytes of all files below `folder`, without following links.

    The search stops above `enough` bytes. An unreadable folder (closed, or deeper than the longest path) counts as too
    much.
    """
    total, pending = 0, [folder]
    while pending and total <= enough:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    # 512 more for the entry itself, so that many empty files count too.
                    total += entry.stat(follow_symlinks=False).st_blocks * 512 + 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except FileNotFoundError:
            continue  # it has just gone
        except OSError:
            return enough + 1
    return total


_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")
"""Control groups of a container, seen from inside: version 2 and version 1."""


def read_memory_limit() -> int:
    """Return the container's memory limit in bytes, or 0 if unlimited or unreadable."""
    for path in (f"{_GROUPS[0]}/memory.max", f"{_GROUPS[1]}/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else 0
    return 0


def count_killed() -> int:
    """Return how many processes of the container the kernel has killed for lack of memory."""
    for path in (f"{_GROUPS[0]}/memory.events", f"{_GROUPS[1]}/memory.oom_control"):
        try:
            with open(path) as file:
                for row in file:
                    if row.startswith("oom_kill "):
                        return int(row.split()[1])
        except OSError:
            continue
    return 0
