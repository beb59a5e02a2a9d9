"""What a processor's or a GPU's multipliers could do at most, by its data sheet: what a library reaches stands beside.

Invariant: nothing is measured here. It is cores in use, times the clock that the system tells, times the operations
(a multiplication and an addition are two) of a cycle; None where one of them is not known. A virtual machine tells a
nominal clock, which a processor may exceed, and falls below where its widest units are all busy.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

FAMILY_OF_ZEN_4, FAMILY_OF_ZEN_5 = 25, 26
GPU_RATES = {(8, 0): (2048, 128), (9, 0): (4096, 256), (10, 0): (8192, 256)}
"""By compute capability (A100; H100 and H200; B200): operations of a cycle of a multiprocessor, dense, in bfloat16 by
its tensor cores, and in float32 without TF32."""


class Peak(NamedTuple):
    """`flops` operations a second, and how that comes about."""

    flops: float
    how: str


def peak_of(dtype: torch.dtype, device: torch.device, threads: int) -> Peak | None:
    """Of `threads` cores, or of a GPU."""
    if device.type == "cuda":
        return _of_gpu(dtype, device)
    info, at_most = Path("/proc/cpuinfo"), Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if device.type != "cpu" or not info.exists():
        return None
    clock = float(at_most.read_text()) * 1e3 if at_most.exists() else None
    return of_processor(info.read_text(), dtype, threads, clock)


def of_processor(cpuinfo: str, dtype: torch.dtype, threads: int, most_hz: float | None = None) -> Peak | None:
    """From the text of /proc/cpuinfo; `most_hz`: the highest clock, where the system tells it."""
    told: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    flags, clock = set(told.get("flags", "").split()), most_hz or float(told.get("cpu MHz", 0)) * 1e6
    rate = _a_cycle(flags, told.get("vendor_id", ""), int(told.get("cpu family", 0)), dtype)
    if rate is None or not clock:
        return None
    each, by = rate
    at = "at most" if most_hz else "as the system tells"
    cores = f"{threads} core{'s' * (threads != 1)}"
    return Peak(threads * clock * each, f"{cores} × {clock / 1e9:.1f} GHz ({at}) × {each} operations a cycle ({by})")


def _a_cycle(flags: set[str], vendor: str, family: int, dtype: torch.dtype) -> tuple[int, str] | None:
    """Operations of a cycle of a core, and by what. bfloat16 without an instruction for it is multiplied as float32."""
    amd = vendor == "AuthenticAMD"
    if dtype == torch.bfloat16 and "amx_bf16" in flags:
        return 1024, "AMX"
    if dtype == torch.bfloat16 and "avx512_bf16" in flags:
        return (128 if amd and family >= FAMILY_OF_ZEN_5 else 64), "AVX-512 BF16"
    if "avx512f" in flags:
        return (32 if amd and family <= FAMILY_OF_ZEN_4 else 64), "AVX-512"
    if {"avx2", "fma"} <= flags:
        return 32, "AVX2"
    return None


def _of_gpu(dtype: torch.dtype, device: torch.device) -> Peak | None:
    of = torch.cuda.get_device_properties(device)
    rates, kilohertz = GPU_RATES.get((of.major, of.minor)), getattr(of, "clock_rate", None)
    if rates is None or not kilohertz:
        return None
    each, count = rates[dtype == torch.float32], of.multi_processor_count
    how = f"{count} multiprocessors × {kilohertz / 1e6:.2f} GHz × {each} operations a cycle"
    return Peak(count * kilohertz * 1e3 * each, how)
