"""Chooses device and number format for this machine, and releases its memory between phases."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress

import torch

from ajet.schema.errors import ConfigError

KERNELS = 64


def choose_device(name: str) -> torch.device:
    """Return the device. `auto` prefers cuda, then mps, then cpu.

    Raises:
        ConfigError: this machine lacks the device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    if not present.get(kind):
        present_devices = ", ".join(device for device, is_there in present.items() if is_there)
        raise ConfigError(
            f"The device {name} is not on this machine.",
            where="ajet.trainer_common.device",
            expected=f"auto, or one of: {present_devices}",
        )
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype. `auto` is bfloat16 if the device multiplies bfloat16 faster than float32."""
    if name == "auto":
        from ajet.engine.models import choose_fast_dtype

        return choose_fast_dtype(device)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def bound_kernel_caches() -> None:
    """Limit torch's caches of CPU kernels to `KERNELS` shapes, unless the environment sets a limit.

    By default torch caches 1024 kernels of about half a megabyte each, and each token count is a new shape: at first, a
    run would grow by a hundred megabytes per step. Must run before the first matrix product.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


def release_memory() -> None:
    """Return memory to the system: reference cycles (keys and values of ended rows) and glibc's free lists.

    The next phase of a run cannot always reuse memory retained by glibc.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def freeze_startup_objects() -> bool:
    """Exclude all current objects from garbage collection until `gc.unfreeze()`.

    Modules and a model are half a million objects; a scan costs a third of a second of a core, twice per step.

    Returns:
        False if objects were already frozen in this process; the first caller must then unfreeze them.
    """
    release_memory()  # includes memory used while loading the weights
    if gc.get_freeze_count():
        return False
    gc.freeze()
    return True
