"""Ends torch's OpenMP worker threads when a thread stops computing.

Each thread that runs parallel loops has its own team of workers. GNU's OpenMP lets workers spin between loops only
while all teams together have no more threads than cores. With two teams on two cores (trainer and engine), every loop
starts and ends with a kernel sleep and wake-up, and two threads are no faster than one. The engine's thread therefore
ends its team when idle, and the trainer's thread after each phase; the next loop creates a new team in 0.1 ms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_SOFT = 1
"""omp_pause_soft: end workers but preserve settings."""


def end_worker_threads() -> None:
    """End the workers of the calling thread's team. Must be called outside of parallel loops.

    Does nothing if torch uses another OpenMP library, because only GNU's has the problem: with several teams its
    workers sleep between loops.
    """
    if (pause := find_pause_function()) is not None:
        pause(_SOFT)


@cache
def find_pause_function() -> Any:
    """Return `omp_pause_resource_all` (OpenMP 5.0) from torch's libgomp, or None."""
    import torch

    packages = Path(torch.__file__).resolve().parents[1]
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            libgomp = find_libgomp(maps, packages)
        return None if libgomp is None else getattr(ctypes.CDLL(libgomp), "omp_pause_resource_all", None)
    except OSError:  # not Linux, or the library file is gone
        return None


def find_libgomp(maps: Iterable[str], packages: Path) -> str | None:
    """Return the path of torch's libgomp, or None if absent or ambiguous.

    Args:
        maps: lines of the process's memory map (/proc/self/maps).
        packages: the folder that contains the package torch.
    """
    mapped = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    files = {fields[5] for fields in mapped if len(fields) == 6 and Path(fields[5]).name.startswith("libgomp")}
    torch_files = {
        file for file in files if file.startswith((f"{packages}/torch/", f"{packages}/torch.libs/"))
    } or files
    return torch_files.pop() if len(torch_files) == 1 else None
