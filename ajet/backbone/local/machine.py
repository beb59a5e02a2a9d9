"""What the machine at hand does well: device, number format, threads. Each choice is logged with its reason."""

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
"""How long the processors are watched before the number of threads is chosen."""
KERNELS = 64
NOISE = 0.25
"""Cores' worth of other processes' work that does not count as load."""


def choose_device(name: str) -> torch.device:
    """`auto`: cuda, then mps, then cpu. Raises ConfigError for one that is not here."""
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
    """`auto`: bfloat16 where the device multiplies it faster than float32."""
    if name == "auto":
        from ajet.engine.models import choose_fast_dtype

        return choose_fast_dtype(device)
    chosen: torch.dtype = getattr(torch, name)
    return chosen


def bound_kernel_caches() -> None:
    """Keep the CPU kernels of at most `KERNELS` shapes. torch keeps 1024 of about half a megabyte each, and every
    number of tokens is another shape: a run would grow by a hundred megabytes a step at first. Must come before the
    first matrix product; what the environment says wins."""
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


def choose_threads(wanted: int | str, device: torch.device) -> int:
    """Set and answer torch's threads. `auto`: OMP_NUM_THREADS if set, else the physical cores that this process may
    use and that other processes leave free: a second thread on a busy core makes small steps ten times slower."""
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
    """Give memory back to the system: what hangs in reference cycles (the keys and values of rows that ended do), and
    what glibc keeps for itself, which a run's next phase cannot always use."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def freeze_startup_objects() -> bool:
    """Have the collections to come leave alone what a start has made, until `gc.unfreeze()`: modules and a model are
    half a million objects, and looking through them costs a third of a second of a core, twice a step. Answers whether
    that was done here: False where somebody has done it for this process already, and has it to undo."""
    release_memory()  # of what loading the weights took, too
    if gc.get_freeze_count():
        return False
    gc.freeze()
    return True


def _busy_cores() -> float:
    """The number of allowed cores that other processes kept busy just now."""
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
