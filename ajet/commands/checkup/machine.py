"""The machine: processors, memory, GPUs, disk. Within the process's own limits (affinity, control group)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil

from ajet.engine.machine import main_memory
from ajet.record.processors import usable_cpus
from ajet.schema.errors import Finding

_GIB = 2**30
_NVIDIA_SECONDS = 5.0
FEW_GIB = 4.0
"""Memory below which even small models train badly."""
LITTLE_GIB, NO_GIB = 5.0, 0.5
"""Disk below which checkpoints of a small model may not fit; below which no run should start."""


def machine(folder: Path) -> list[Finding]:
    """`folder` is where runs would be recorded."""
    return [_python(), _cores(), _memory(), *_gpus(), _disk(folder)]


def _python() -> Finding:
    return Finding("python", "ok", f"{sys.version.split()[0]} ({sys.executable})")


def _cores() -> Finding:
    usable = usable_cpus() or 1
    busy = psutil.getloadavg()[0]
    text = f"{usable} usable, load {busy:.1f}"
    if busy > usable * 0.75:
        do = "stop what else runs: on a busy processor small training steps take many times longer"
        return Finding("cores", "warning", text, do)
    return Finding("cores", "ok", text)


def _memory() -> Finding:
    total, free = main_memory()
    text = f"{total / _GIB:.1f} GiB, {free / _GIB:.1f} free"
    if free < FEW_GIB * _GIB:
        return Finding("memory", "warning", text, "choose a small model, or free memory")
    return Finding("memory", "ok", text)


def _gpus() -> list[Finding]:
    query = ["--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
    try:
        told = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, timeout=_NVIDIA_SECONDS, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return [Finding("gpu", "ok", "none of NVIDIA's: the local backbone trains on the processor")]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding("gpu", "warning", f"nvidia-smi does not answer: {error}", "look at the driver")]
    if told.returncode != 0:
        text = f"nvidia-smi fails: {(told.stdout or told.stderr).strip()[:200]}"
        return [Finding("gpu", "warning", text, "look at the driver")]
    found = [Finding("gpu", "ok", f"{line.strip()} free") for line in told.stdout.splitlines() if line.strip()]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return found
    if found and torch.endswith("+cpu"):
        text = f"torch {torch} is built for processors only: the GPU would not be used"
        found.append(Finding("gpu", "warning", text, "install torch for CUDA (`make setup` on this machine does)"))
    return found


def _disk(folder: Path) -> Finding:
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / _GIB:.1f} GiB free for {folder}"
    if not os.access(place, os.W_OK):
        return Finding("disk", "problem", f"{place} cannot be written", "choose another folder with --exp-dir")
    if free < NO_GIB * _GIB:
        return Finding("disk", "problem", text, "free some, or record elsewhere (--exp-dir)")
    if free < LITTLE_GIB * _GIB:
        return Finding("disk", "warning", text, "checkpoints may not fit: lower trainer_common.max_checkpoints_to_keep")
    return Finding("disk", "ok", text)
