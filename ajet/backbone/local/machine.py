"""Chooses device, number format and thread count for this machine; the thread choice is logged with its reason."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from contextlib import suppress

import psutil
import torch
from loguru import logger

from ajet.record.processors import count_cores
from ajet.schema.errors import ConfigError

LOOK_SECONDS = 0.3
"""Seconds of measuring the processor load before the number of threads is chosen."""
KERNELS = 64
NOISE = 0.25
"""Load of other processes, in cores, to ignore as noise."""


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` prefers cuda, then mps, then cpu.

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
        here = ", ".join(device for device, is_there in present.items() if is_there)
        raise ConfigError(
            f"The device {name} is not on this machine.",
            where="ajet.trainer_common.device",
            expected=f"auto, or one of: {here}",
        )
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype; `auto` is bfloat16 if the device multiplies bfloat16 faster than float32."""
    if name == "auto":
        from ajet.engine.models import choose_fast_dtype

        return choose_fast_dtype(device)
    chosen: torch.dtype = getattr(torch, name)
    return chosen


def bound_kernel_caches() -> None:
    """Limit torch's caches of CPU kernels to `KERNELS` shapes, unless the environment sets a limit.

    By default torch caches 1024 kernels of about half a megabyte each, and each token count is a new shape: at first, a
    run would grow by a hundred megabytes per step. Must run before the first matrix product.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


def choose_threads(wanted: int | str, device: torch.device) -> int:
    """Set torch's thread count and return the number.

    `auto` takes OMP_NUM_THREADS, or else the allowed physical cores left free by other processes: a second thread on a
    busy core makes small steps ten times slower.
    """
    if isinstance(wanted, int):
        count, why = wanted, "as configured"
    elif (configured := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(configured) > 0:
        count, why = int(configured), "OMP_NUM_THREADS"
    else:
        free, busy = count_cores(), _busy_cores()
        count = max(1, math.floor(free - busy + NOISE))
        why = f"{free} cores, {busy:.1f} of them busy with other processes"
    torch.set_num_threads(count)
    logger.info("{} thread{} on {} ({})", count, "" if count == 1 else "s", device.type, why)
    return count


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


def _busy_cores() -> float:
    """Return the number of allowed cores kept busy by other processes, measured over LOOK_SECONDS."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))

    def busy() -> float:
        times = psutil.cpu_times(percpu=True)
        return sum(
            sum(times[cpu]) - times[cpu].idle - getattr(times[cpu], "iowait", 0.0) - getattr(times[cpu], "guest", 0.0)
            for cpu in allowed
            if cpu < len(times)
        )

    start, own, total = time.monotonic(), time.process_time(), busy()
    time.sleep(LOOK_SECONDS)
    return max(0.0, (busy() - total - (time.process_time() - own)) / (time.monotonic() - start))
