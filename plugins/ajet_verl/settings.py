"""The config that verl gets, checked against the model and the machine as far as they are at hand.

Invariant: neither verl nor ray is imported for it, so that what is wrong is said within seconds.
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
    """verl's whole config.

    model_folder: where the model lies, if `model.path` is nothing that verl could load. run_folder: the run's.
    own_cluster: the run's machine is all of the cluster, so its accelerators decide what `device: auto` is. Raises
    ConfigError for what verl would refuse, MissingExtraError without verl.
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
    """Variables that verl's processes need for `config`, as verl's own program sets them. Warns where that is for tests
    only."""
    device = config["trainer"]["device"]
    found: dict[str, str] = {}
    if config["trainer"]["v1"]["trainer_mode"] == SEPARATE:
        found["VERL_LOGGING_LEVEL"] = "WARNING"  # a line that verl 0.9.1 logs at INFO there raises TypeError
    if device == "npu":
        found |= {"HCCL_HOST_SOCKET_PORT_RANGE": "auto", "HCCL_NPU_SOCKET_PORT_RANGE": "auto"}
    elif device == "cpu":
        logger.warning("verl runs without an accelerator: that is for tests and for trying things out, it is slow")
        found |= cpu.build_environment()
    elif _uses_megatron(config) and any(gpu.generation in (8, 9) for gpu in list_gpus()):
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # kernels in the order of their launch
    return found


def build_needs(config: Mapping[str, Any]) -> RayNeeds:
    """Return what verl needs of Ray, by its configuration."""
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
    return bool(config["actor_rollout_ref"]["actor"]["strategy"] == "megatron")


def find_device(gpu_bytes: int | None) -> str:
    """The kind of accelerator of this machine; cpu without one."""
    if gpu_bytes is not None:
        return "cuda"
    return "npu" if shutil.which("npu-smi") else "cpu"


def _find_local_folder(experiment: Experiment) -> Path | None:
    """The folder of the model's config.json, if it is on this machine already."""
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
