"""Builds verl's config, checks it against model and machine as far as known, and derives Ray's needs from it.

Invariant: neither verl nor ray is imported, so errors appear within seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet_ray.cluster.gpus import list_gpus
from ajet_ray.cluster.ray_cluster import RayNeeds
from ajet_ray.cluster.resources import Demand
from ajet_ray.modes import SEPARATE
from ajet_verl import cpu
from ajet_verl.config import ModelLimits, compose_verl_config, find_extra, read_limits

if TYPE_CHECKING:
    from ajet.config import Experiment


def build_settings(
    experiment: Experiment,
    *,
    model_folder: Path | None = None,
    run_folder: Path | None = None,
    own_cluster: bool = True,
) -> dict[str, Any]:
    """Compose and check verl's complete config.

    Args:
        model_folder: folder of the model, if verl cannot load `model.path` itself.
        run_folder: the run directory.
        own_cluster: True if the run starts a Ray cluster on this machine, so that this machine's accelerators decide
            `device: auto`. False means cuda.

    Raises:
        ConfigError: verl would refuse a setting.
        MissingExtraError: verl is not installed.
    """
    folder = model_folder or _find_local_folder(experiment)
    model = read_limits(folder) if folder is not None else ModelLimits()
    gpu_bytes = min((gpu.total for gpu in list_gpus()), default=None)
    device = find_device(gpu_bytes) if own_cluster else "cuda"
    return compose_verl_config(
        experiment,
        model=model,
        gpu_bytes=gpu_bytes,
        model_folder=model_folder,
        run_folder=run_folder,
        device=device,
    )


def build_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that verl's own program would set for its processes.

    Logs a warning if the device is a CPU, which is supported for tests only.

    Args:
        config: verl's complete config.
    """
    device = config["trainer"]["device"]
    variables: dict[str, str] = {}
    if config["trainer"]["v1"]["trainer_mode"] == SEPARATE:
        variables["VERL_LOGGING_LEVEL"] = "WARNING"  # an INFO log line of verl 0.9.1 raises TypeError in this mode
    if device == "npu":
        variables |= {"HCCL_HOST_SOCKET_PORT_RANGE": "auto", "HCCL_NPU_SOCKET_PORT_RANGE": "auto"}
    elif device == "cpu":
        logger.warning("verl runs without an accelerator: this is slow, and meant for tests only")
        variables |= cpu.build_environment()
    elif _uses_megatron(config) and any(gpu.generation in (8, 9) for gpu in list_gpus()):
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # kernels run in launch order
    return variables


def build_needs(config: Mapping[str, Any]) -> RayNeeds:
    """Return what verl needs from Ray under its complete config."""
    device = config["trainer"]["device"]
    return RayNeeds(
        Demand.of(config),
        resource="NPU" if device == "npu" else "GPU",
        extra=find_extra(device),
        needed_for="The verl backbone",
        init=dict(config["ray_kwargs"].get("ray_init") or {}),
        cpus_key="verl.ray_kwargs.ray_init.num_cpus",
        serving_key="verl.actor_rollout_ref.rollout.nnodes",
    )


def _uses_megatron(config: Mapping[str, Any]) -> bool:
    """True if Megatron trains the model under verl's complete config."""
    return bool(config["actor_rollout_ref"]["actor"]["strategy"] == "megatron")


def find_device(gpu_bytes: int | None) -> str:
    """Return the kind of accelerator of this machine: cuda, npu, or cpu without an accelerator.

    Args:
        gpu_bytes: memory of a GPU listed by nvidia-smi, or None if none is listed.
    """
    if gpu_bytes is not None:
        return "cuda"
    return "npu" if shutil.which("npu-smi") else "cpu"


def _find_local_folder(experiment: Experiment) -> Path | None:
    """Return the folder of the model's config.json, if present on this machine."""
    path = experiment.settle_values()["model"]["path"]
    if path is None:
        return None
    if path.startswith("embedded:"):
        from ajet.engine.embedded import shipped_folder

        return shipped_folder(path.removeprefix("embedded:"))
    if Path(path).is_absolute():
        return Path(path) if (Path(path) / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError:  # a path that does not exist
        return None
    return Path(cached).parent if isinstance(cached, str) else None
