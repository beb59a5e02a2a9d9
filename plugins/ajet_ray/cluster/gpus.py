"""This machine's GPUs, as nvidia-smi tells of them.

Invariant: no library is loaded and no GPU touched for it; without the command, or without an answer in time, there are
none (a cluster's may be on other machines).
"""

from __future__ import annotations

import subprocess
from typing import NamedTuple

from ajet.schema.errors import UserError

BUSY = 0.2
"""A GPU with more than this share of its memory taken is somebody else's."""


class Gpu(NamedTuple):
    """Sizes in bytes."""

    total: int
    used: int
    generation: int
    """Of its compute capability the number before the dot: 8 and 9 are Ampere and Hopper."""
    name: str
    """Of the product, such as NVIDIA H100 PCIe."""


def list_gpus() -> list[Gpu]:
    """All GPUs of this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total,memory.used,compute_cap,name", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        rows = [line.split(",", 3) for line in done.stdout.splitlines() if line.strip()]
        return [
            Gpu(int(total) * 2**20, int(used) * 2**20, int(float(cap)), name.strip()) for total, used, cap, name in rows
        ]
    except (OSError, subprocess.SubprocessError, ValueError):  # no such command, no GPU, or one that does not tell
        return []


def refuse_busy(wanted: int) -> None:
    """Raises UserError when fewer than `wanted` GPUs of this machine are free."""
    found = list_gpus()
    busy = [number for number, gpu in enumerate(found) if gpu.used > BUSY * gpu.total]
    if not busy or len(found) - len(busy) >= wanted:
        return
    taken = ", ".join(f"{number} ({found[number].used / 2**30:.0f} GiB)" for number in busy)
    raise UserError(
        f"The run wants {wanted} GPUs; of {len(found)}, others use {len(busy)}: {taken}.",
        where="ajet.trainer_common.n_gpus_per_node",
        expected=f"at most {len(found) - len(busy)}, those that are free",
        do="end what uses them, or start with --skip-check-avail-gpu; CUDA_VISIBLE_DEVICES chooses among them",
    )
