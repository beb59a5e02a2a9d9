"""Free memory and preferred number format of the device of a run."""

from __future__ import annotations

from pathlib import Path

import psutil

from ajet.engine.models import choose_fast_dtype

_CGROUP = Path("/sys/fs/cgroup")


def measure_free_memory(device: str) -> int | None:
    """Return the bytes that this process may use on a device: free memory plus its own. None if unknown.

    Args:
        device: value of `trainer_common.device`.
    """
    import torch

    kind = resolve_device_kind(device)
    if kind == "cuda":
        device = "cuda" if device == "auto" else device
        if not torch.cuda.is_available():
            return None
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return measure_main_memory()[1] + psutil.Process().memory_info().rss if kind == "cpu" else None


def measure_main_memory() -> tuple[int, int]:
    """Return total and free main memory in bytes, within the control group's limit."""
    total, free = psutil.virtual_memory().total, psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max" and int(limit) < total:
            total = int(limit)
            free = min(free, total - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return total, free


def resolve_device_kind(device: str) -> str:
    """Return the kind of `trainer_common.device` on this machine: cuda, mps or cpu."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return device.split(":")[0]


def is_float32_default(device: str) -> bool:
    """True if `model.dtype: auto` means float32 on the device."""
    import torch

    kind = resolve_device_kind(device)
    return choose_fast_dtype("cpu" if kind == "cuda" and not torch.cuda.is_available() else kind) is torch.float32
