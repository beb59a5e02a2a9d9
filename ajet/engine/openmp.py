"""Teams of torch's worker threads, one for each thread that ran a parallel loop: whoever stops computing ends its own.

GNU's OpenMP lets a team's workers spin between two loops only while the threads of all teams together are no more than
the cores. With two teams on two cores, the trainer's and the engine's, each loop begins and ends with a sleep and a
wake by the kernel, and two threads are no faster than one. So the engine's thread leaves its team where it has nothing
to do, and the trainer's after each phase; the next loop makes another one, in a tenth of a millisecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

_SOFT = 1
"""omp_pause_soft: settings stay."""


def end_worker_threads() -> None:
    """End the workers of the calling thread's team, outside of any parallel loop. Nothing is done where torch has
    another OpenMP than GNU's, which has no such rule."""
    if (pause := find_pause_function()) is not None:
        pause(_SOFT)


@cache
def find_pause_function() -> Any:
    """`omp_pause_resource_all` (OpenMP 5.0) of the libgomp that torch computes with; None where there is none."""
    import torch

    packages = Path(torch.__file__).resolve().parents[1]
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            found = find_libgomp(maps, packages)
        return None if found is None else getattr(ctypes.CDLL(found), "omp_pause_resource_all", None)
    except OSError:  # not Linux, or the file is gone that it was loaded from
        return None


def find_libgomp(maps: Iterable[str], packages: Path) -> str | None:
    """The file of GNU's OpenMP among those of a process' memory, as Linux lists them: torch's own where there are
    several. None: there is none, or it cannot be told which is torch's."""
    mapped = [line.rstrip("\n").split(maxsplit=5) for line in maps]
    files = {each[5] for each in mapped if len(each) == 6 and Path(each[5]).name.startswith("libgomp")}
    own = {file for file in files if file.startswith((f"{packages}/torch/", f"{packages}/torch.libs/"))} or files
    return own.pop() if len(own) == 1 else None
