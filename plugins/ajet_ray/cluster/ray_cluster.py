"""The Ray cluster of a run: a new cluster on the machine, or an existing cluster.

Invariants: a cluster started by the run ends with the run, also after a kill. An existing cluster stays. Signal
handlers belong to the run: Ray's handlers are replaced after the start. verl is never imported here, because an import
takes 15 seconds.
"""

from __future__ import annotations

import getpass
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ajet
from ajet.config.plugins import VARIABLE as PLUGINS
from ajet.config.plugins import list_versions
from ajet.config.programs import holds_other_ajet
from ajet.schema.commands import format_command
from ajet.schema.errors import MissingExtraError, RunFailed, UserError
from ajet_ray.cluster.ray_errors import read_last_line
from ajet_ray.cluster.resources import Demand

ADDRESS = "RAY_ADDRESS"
QUIET = {
    "TOKENIZERS_PARALLELISM": "true",
    "VLLM_LOGGING_LEVEL": "WARN",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "NCCL_DEBUG": "WARN",
    "TRANSFER_QUEUE_ENABLE": "1",
}
"""Environment variables of Ray's processes: those that verl sets, and some that reduce log output."""
EXCLUDED = ["launcher_record", ".git", ".venv", "__pycache__", "*.safetensors", "*.pt"]
"""Files of the YAML's folder not copied to nodes."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder of torch's compile cache, which the next run reuses."""
PATIENCE_S = 600.0
"""Seconds to wait for a cluster's nodes."""


@dataclass(frozen=True, slots=True)
class RayNeeds:
    """What a backbone (verl or Trinity) needs from Ray, and the names to use in messages about it."""

    demand: Demand
    resource: str
    """Ray's name of the accelerators: GPU or NPU."""
    extra: str
    """The pip extra of ajet that installs Ray."""
    needed_for: str
    """The backbone's name in an error message, as the beginning of a sentence."""
    init: Mapping[str, Any]
    """Arguments of `ray.init` for a cluster started by the run."""
    cpus_key: str
    """The config key of the number of Ray's CPUs, for an error message."""
    serving_key: str
    """The config key of the number of accelerators for serving apart from the trainer, for an error message."""
    namespace: str | None = None
    """Namespace of the actors' names. None: a namespace of the run alone."""


def _list_plugin_variables() -> dict[str, str]:
    """Return the environment variable that lists the driver's plug-ins, or {} if it is not set."""
    plugins = os.environ.get(PLUGINS)
    return {} if plugins is None else {PLUGINS: plugins}


@contextmanager
def connect_to_ray(
    needs: RayNeeds,
    *,
    address: str | None,
    folder: Path,
    environment: Mapping[str, str],
    temporary: Path,
    on_wait: Callable[[int, int], None] = lambda found, wanted: None,
) -> Iterator[None]:
    """Connect the process to Ray within the block, starting a cluster on this machine if there is no address.

    Args:
        needs: accelerators and CPUs that the cluster must have, and names for messages.
        address: address of an existing cluster, or None to start a new cluster.
        folder: the YAML's folder, copied to other machines.
        environment: environment variables of the run's processes.
        temporary: temporary folder of the processes in a new cluster.
        on_wait: called with the numbers of found and wanted GPUs, on each change while GPUs are missing.

    Raises:
        UserError: the cluster is unreachable, GPUs are missing, or nodes have other plug-ins.
    """
    try:
        import ray
    except ImportError as problem:
        raise MissingExtraError("ray", needs.extra, needed_for=needs.needed_for) from problem

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    runtime_env: dict[str, Any] = {
        "env_vars": {**QUIET, **_list_plugin_variables(), **environment},
        **build_setup_hook((os.getcwd(), str(folder))),
    }
    init_common: Any = {"log_to_driver": True, "logging_level": "ERROR"}
    if needs.namespace is not None:
        init_common["namespace"] = needs.namespace
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Ray's processes inherit it: a closed terminal ends the run first
    if address is None:
        init_arguments = dict(needs.init)
        init_arguments.pop("runtime_env", None)  # replaced by the one built above
        # The run's temporary folder is removed at the end, so torch's compile cache is placed outside of it.
        runtime_env["env_vars"] |= {"TMPDIR": str(temporary), COMPILED: os.environ.get(COMPILED, _find_compile_cache())}
        init_common |= {"include_dashboard": False, "_temp_dir": str(temporary / "ray")}
        try:
            ray.init(address="local", runtime_env=runtime_env, **{**init_common, **init_arguments})
        except Exception as problem:  # Ray has no narrower error for a head that does not start in time
            raise RunFailed(
                f"Ray did not start on this machine: {str(problem).strip().splitlines()[0]}",
                do=f"start again when the machine is less busy; `{format_command('doctor')}` checks what Ray needs",
            ) from problem
    else:
        runtime_env |= {"working_dir": str(folder), "excludes": EXCLUDED}  # Ray copies the folder to every node
        try:
            ray.init(address=address, runtime_env=runtime_env, **init_common)
        except (ConnectionError, ValueError) as problem:
            raise UserError(
                f"There is no Ray cluster to join: {str(problem).strip().splitlines()[0]}",
                where=f"{ADDRESS}={address}",
                expected="the address of a running head, such as 10.0.0.1:6379, or auto on one of its nodes",
                do="start one with `ray start --head` (RAY_AUTH_TOKEN must be the same here), or use --with-ray",
            ) from problem
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():  # with Ray's handler SIGTERM would end the run within a step
            signal.signal(number, handler)
    try:
        wait_for_gpus(needs, own=address is None, on_wait=on_wait)
        if address is not None:
            require_same_plugins()
        yield
    finally:
        ray.shutdown()


def _find_compile_cache() -> str:
    """Return torch's default folder for its compile cache, which outlives the run and serves the next one."""
    return os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")


def wait_for_gpus(needs: RayNeeds, *, own: bool, on_wait: Callable[[int, int], None]) -> None:
    """Wait up to ten minutes until the cluster has the accelerators that the run needs.

    Raises UserError if accelerators are still missing then, or if Ray has too few CPUs.

    Args:
        needs: accelerators and CPUs that the run needs, and names for messages.
        own: True if the run started the cluster: then nothing can join, and the function does not wait.
        on_wait: called with the numbers of found and wanted accelerators, on each change.
    """
    import ray

    demand, resource = needs.demand, needs.resource
    required = demand.accelerators
    deadline = time.monotonic() + (0 if own else PATIENCE_S)
    reported = -1  # number of accelerators passed to `on_wait` last
    while (available := int(ray.cluster_resources().get(resource, 0))) < required:
        if time.monotonic() > deadline:
            raise UserError(
                f"The run needs {required} {resource}s ({demand}), but Ray has {available}.",
                where="ajet.trainer_common.nnodes and n_gpus_per_node"
                + (f", {needs.serving_key}" if demand.serving[0] else ""),
                expected=f"at most {available}" if own else f"a cluster with {required} {resource}s",
                do="for tests without them: ajet.trainer_common.device: cpu" if own and not available else "",
            )
        if available != reported:
            on_wait(available, required)
            reported = available
        time.sleep(2.0)
    cpus, needed = int(ray.cluster_resources().get("CPU", 0)), demand.cpus
    if cpus < needed:
        raise UserError(
            f"The run's processes need {needed} of Ray's CPUs, but Ray has {cpus}: some processes would wait for ever.",
            where=needs.cpus_key if own else f"{ADDRESS}: the cluster's --num-cpus",
            expected=f"at least {needed}; these CPUs only count processes, most of which wait, not cores",
        )


# The package `ajet` of Ray's processes.
# Invariant: Ray's processes use the package of the run's own process. Ray puts the working directory first in
# `sys.path` with a process's first task. If the directory holds another package of the same name (a clone of
# AgentJet), ajet is loaded before.
ROOT = str(Path(ajet.__file__).resolve().parents[1])
"""The folder that contains the package ajet on the driver's machine.

A node without this folder must find its own installation of ajet.
"""


def build_setup_hook(folders: Iterable[str]) -> dict[str, Any]:
    """Return the entries of Ray's `runtime_env` that make its processes import this package ajet.

    Args:
        folders: folders that come before ajet's folder in `sys.path` of Ray's processes.

    Returns:
        {} if no folder contains another package named ajet, else a hook that imports this one first.
    """
    if not any(map(holds_other_ajet, folders)):
        return {}
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no process could import it by its name
    return {"worker_process_setup_hook": load_own_package}


def load_own_package() -> None:
    """Import the driver's package ajet in a new Ray process.

    It must be imported before the first task, whose working directory may hold another package of this name and becomes
    the first entry of `sys.path`.
    """
    sys.path.insert(0, ROOT)
    import_module("ajet")
    sys.path.remove(ROOT)


_PLUGINS_PATIENCE_S = 300.0
"""Seconds for a node to start a process and load the plug-ins."""


def require_same_plugins() -> None:
    """Raise UserError for a node of the cluster with plug-ins different from those of this process.

    Each node runs a task that lists its plug-ins with their versions.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    list_on_node = ray.remote(num_cpus=0, max_retries=0)(list_versions)
    pending_versions = []
    for node in ray.nodes():
        if node["Alive"]:
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            pending_versions.append(
                (node["NodeManagerHostname"], list_on_node.options(scheduling_strategy=on_node).remote())
            )
    driver_versions = list_versions()
    for name, pending in pending_versions:
        try:
            node_versions = ray.get(pending, timeout=_PLUGINS_PATIENCE_S)
            difference = describe_difference(driver_versions, node_versions)
        except ray.exceptions.RayError as problem:  # the node has no ajet, or another version of it
            difference = f"the node's plug-ins cannot be listed: {read_last_line(problem)}"
        if difference:
            raise UserError(
                f"The plug-ins of the node {name} differ from those of this machine: {difference}.",
                where=f"the node {name}",
                do=f"install the same packages on every node; `{format_command('plugins')}` lists them",
            )


def describe_difference(own: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Describe in one line how a node's plug-ins differ from the driver's, or return "" if they are equal.

    Args:
        own: version of each plug-in of the driver, by name.
        found: version of each plug-in of the node, by name.
    """
    return "; ".join(_list_differences(own, found))


def _list_differences(driver: Mapping[str, str], node: Mapping[str, str]) -> Iterator[str]:
    """Yield a phrase for each difference: plug-ins missing on the node, other versions, plug-ins only on the node.

    Args:
        driver: version of each plug-in of the driver, by name. "" if the version is unknown.
        node: version of each plug-in of the node, by name.
    """
    if missing := sorted(set(driver) - set(node)):
        yield f"{', '.join(missing)} cannot be loaded on the node"
    for name in sorted(set(driver) & set(node)):
        if driver[name] != node[name]:
            yield (
                f"{name} has version {node[name] or 'unknown'} on the node, {driver[name] or 'unknown'} on this machine"
            )
    if additional := sorted(set(node) - set(driver)):
        yield f"{', '.join(additional)} only on the node"
