"""This machine's GPUs, as listed by nvidia-smi.

Invariant: no library is loaded and no GPU is touched; without the command, or without a timely answer, the list is
empty (a cluster's GPUs may be on other machines).
"""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from ajet.schema.errors import UserError

BUSY = 0.2
"""Share of used memory above which a GPU counts as used by another owner."""


class Gpu(NamedTuple):
    """A GPU of the machine, with sizes in bytes."""

    total: int
    used: int
    generation: int
    """Major number of the compute capability: 8 is Ampere, 9 is Hopper."""
    name: str
    """The product's name, for example NVIDIA H100 PCIe."""


def list_gpus() -> list[Gpu]:
    """List all GPUs of the current machine, or none if nvidia-smi is missing or fails."""
    command = ["nvidia-smi", "--query-gpu=memory.total,memory.used,compute_cap,name", "--format=csv,noheader,nounits"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10)
        rows = [line.split(",", 3) for line in completed.stdout.splitlines() if line.strip()]
        return [  # nvidia-smi prints sizes in MiB
            Gpu(int(total) * 2**20, int(used) * 2**20, int(float(cap)), name.strip()) for total, used, cap, name in rows
        ]
    except (OSError, subprocess.SubprocessError, ValueError):  # the command is missing, or reports no GPU
        return []


def refuse_busy(wanted: int) -> None:
    """Raise UserError if fewer than `wanted` GPUs of the machine are free, because other processes use the rest.

    A machine without busy GPUs passes, even with fewer GPUs than wanted: others may be on the nodes of a cluster.
    """
    gpus = list_gpus()
    busy = [number for number, gpu in enumerate(gpus) if gpu.used > BUSY * gpu.total]
    if not busy or len(gpus) - len(busy) >= wanted:
        return
    busy_list = ", ".join(f"{number} ({gpus[number].used / 2**30:.0f} GiB)" for number in busy)
    raise UserError(
        f"The run needs {wanted} GPUs, but of {len(gpus)} GPUs other processes use {len(busy)}: {busy_list}.",
        where="ajet.trainer_common.n_gpus_per_node",
        expected=f"at most {len(gpus) - len(busy)}, the number of free GPUs",
        do="stop the processes that use the GPUs, or start with --skip-check-avail-gpu; CUDA_VISIBLE_DEVICES "
        "chooses GPUs",
    )
