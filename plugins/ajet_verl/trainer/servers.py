"""Starts vLLM's servers in processes before verl requests them.

verl starts the servers after building the model, and their imports take longer than building a small model. Invariant:
verl finds ajet's servers in its registry of replicas and gets each by name. With several nodes the placement of the
servers is not known in advance, so no server is started early.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.plugin.platform import get_platform
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from ajet_verl.trainer.server import make_server_class


class EarlyReplica(vLLMReplica):
    """verl's replica with ajet's servers."""

    def __init__(self, *args: Any, started: Mapping[str, Any], **kwargs: Any) -> None:
        """Create the replica; `started` maps names to early servers."""
        super().__init__(*args, **kwargs)
        self.server_class: Any = _ServerClass(started)


class _ServerClass:
    """Replaces the actor class of verl's server, which verl uses only by `options(...).remote(...)`."""

    def __init__(self, started: Mapping[str, Any]) -> None:
        self._started = started

    def options(self, *, name: str, **options: Any) -> _ServerStart:
        """Return an object whose `remote` starts the server: the early one with this name, or a new actor with these
        options."""
        return _ServerStart(self._started.get(name) or make_actor_class().options(name=name, **options).remote())


class _ServerStart:
    def __init__(self, server: Any) -> None:
        self._server = server

    def remote(self, **parts: Any) -> Any:
        """Run the constructor of verl's server with these arguments, and return the server's actor."""
        self._server.begin.remote(**parts)
        return self._server


def make_actor_class() -> Any:
    """Return the actor class of a server."""
    return ray.remote(make_server_class(vLLMHttpServer.__name__, list_methods()))


def list_methods() -> list[str]:
    """Return the public methods of verl's server."""
    return [name for name, _ in inspect.getmembers(vLLMHttpServer, inspect.isfunction) if not name.startswith("_")]


def start_servers(config: Any) -> None:
    """Register ajet's servers, and start those that share the trainer's accelerators; `config` is verl's."""
    platform, rollout = get_platform(), config.actor_rollout_ref.rollout
    nodes = [node for node in ray.nodes() if node["Alive"] and platform.ray_resource_name() in node["Resources"]]
    # A replica object that is never launched: it computes the number of nodes and the server names that verl will use.
    sample_replica: Any = vLLMReplica(0, rollout, config.actor_rollout_ref.model, gpus_per_node=rollout.n_gpus_per_node)
    is_separate = not config.actor_rollout_ref.get("hybrid_engine", True) or rollout.disaggregation.enabled
    started: dict[str, Any] = {}
    if not is_separate and len(nodes) == sample_replica.nnodes == 1:
        options: dict[str, Any] = {
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=nodes[0]["NodeID"], soft=False),
            "runtime_env": {"env_vars": dict.fromkeys(platform.ray_noset_envvars(), "1") | platform.rollout_env_vars()},
            "max_concurrency": sample_replica.max_concurrency,
        }
        actor_class = make_actor_class()
        for rank in range(config.trainer.n_gpus_per_node // sample_replica.world_size):
            name = f"{sample_replica._get_server_name_prefix()}server_{rank}_0"
            started[name] = actor_class.options(name=name, **options).remote()
    replica_class: Any = partial(EarlyReplica, started=started)
    RolloutReplicaRegistry.register("vllm", lambda: replica_class)
