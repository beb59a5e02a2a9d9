"""Linux control groups that limit memory and number of all processes of one sandbox together.

Invariant: the group is created below a writable group, in version 1, version 2 or a mix of both. If there is none, the
machine stays unchanged and the result is None. The next run removes groups of killed runs.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ajet.schema.sandbox import Limits

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "ajet-sandbox-"
_SETTLE = 2.0
"""Seconds until the kernel releases a group after its processes ended."""
_count = itertools.count()


class ControlGroup:
    """The control group of one sandbox.

    Args:
        folders: one folder with version 2, one folder per controller with version 1.
    """

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    def add_process(self, pid: int) -> None:
        """Move a process, and its later children, into the group. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def count_killed(self) -> int:
        """Return the number of processes killed by the kernel for lack of memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    rows = dict(row.split() for row in (folder / name).read_text().splitlines())
                    if "oom_kill" in rows:
                        return int(rows["oom_kill"])
        return 0

    def remove(self) -> None:
        """Remove the group after its processes ended, and wait up to _SETTLE seconds for the kernel."""
        deadline = time.monotonic() + _SETTLE
        while not all(_remove_group(folder) for folder in self.folders) and time.monotonic() < deadline:
            time.sleep(0.005)


def make_control_group(
    limits: Limits, root: Path = ROOT, proc: Path = Path("/proc/self/cgroup")
) -> ControlGroup | None:
    """Create a control group with the limits, or return None if no group is writable.

    Args:
        root: mount point of the control groups.
        proc: file that names this process's groups.
    """
    for parents in _find_parents(root, proc):
        folders: list[Path] = []
        try:
            for parent, entries in zip(parents, _list_settings(parents, limits), strict=True):
                _remove_leftovers(parent)
                folder = parent / f"{_PREFIX}{os.getpid()}-{next(_count)}"
                folder.mkdir()
                folders.append(folder)
                for name, value, is_required in entries:
                    try:
                        (folder / name).write_text(value)
                    except OSError:
                        if is_required:
                            raise
        except OSError:
            for folder in folders:
                _remove_group(folder)
            continue  # a parent further up may be writable
        return ControlGroup(folders)
    return None


def _find_parents(root: Path, proc: Path) -> Iterator[list[Path]]:
    """Yield the folders in which a group could be created, nearest first.

    With control groups of version 2 each list has one folder, with version 1 one for memory and one for process
    numbers.

    Args:
        root: mount point of the control groups.
        proc: file that names this process's groups.
    """
    try:
        rows = [row.split(":", 2) for row in proc.read_text().splitlines()]
    except OSError:
        return
    path_of_controller = {controller: path.strip("/") for _, names, path in rows for controller in names.split(",")}
    if "memory" in path_of_controller and "pids" in path_of_controller:
        memory, pids = root / "memory" / path_of_controller["memory"], root / "pids" / path_of_controller["pids"]
        yield [memory, pids]
        yield [root / "memory", root / "pids"]
        return
    v2_root = next((mount for mount in (root, root / "unified") if (mount / "cgroup.controllers").exists()), None)
    if v2_root is None or "" not in path_of_controller:
        return
    own_group = v2_root / path_of_controller[""]
    for group in (own_group, *own_group.parents):
        if not group.is_relative_to(v2_root):
            return
        with suppress(OSError):
            if {"memory", "pids"} <= set((group / "cgroup.subtree_control").read_text().split()):
                yield [group]


def _list_settings(parents: list[Path], limits: Limits) -> list[list[tuple[str, str, bool]]]:
    """Return for each folder its entries to write: (file name, text, True if the write must succeed).

    Args:
        parents: one folder with version 2; with version 1 the folder for memory, and the one for process numbers.
    """
    # Two more processes: the resident, and bubblewrap itself.
    memory, processes = str(limits.memory), str(limits.processes + 2)
    if len(parents) == 1:
        return [
            [("memory.max", memory, True), ("memory.swap.max", "0", False), ("pids.max", processes, True)],
        ]
    return [
        [("memory.limit_in_bytes", memory, True), ("memory.memsw.limit_in_bytes", memory, False)],
        [("pids.max", processes, True)],
    ]


def _remove_leftovers(parent: Path) -> None:
    """Remove the groups of ajet's ended processes; the name of a group contains its process id."""
    for group_folder in parent.glob(f"{_PREFIX}*"):
        pid = group_folder.name.removeprefix(_PREFIX).split("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            _remove_group(group_folder)


def _remove_group(folder: Path) -> bool:
    """Remove an empty group. Return True if it is gone, False if it still has processes."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
