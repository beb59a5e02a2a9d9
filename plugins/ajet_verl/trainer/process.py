"""TrainerProcess: the Ray actor that runs verl's trainer and reports to the run's own process.

Invariant: the actor connects verl's public parts like verl's own main program and adds nothing. Errors are raised to
the caller of `run`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.plugin.platform import get_platform
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from ajet.algorithm import open_algorithm
from ajet.algorithm.token_loss import TokenLoss
from ajet_ray.mailbox import CheckpointNotice, PhaseNotice, Sender
from ajet_verl.agent.early import start_agent_loops
from ajet_verl.config.credit import read_credit_settings
from ajet_verl.trainer.hooks import CreditHooks
from ajet_verl.trainer.losses import WeightedSum
from ajet_verl.trainer.reporting import ReportingHooks, RunStoppedError


class TrainerProcess:
    """Ray actor that runs verl's trainer, created by the run's own process."""

    def run(self, config: Any) -> None:
        """Train until the last step, or until the run's own process requests a stop.

        Args:
            config: verl's complete config.
        """
        sender = Sender()
        sender.introduce("trainer")
        sender.post(PhaseNotice("loading"))
        early = start_agent_loops(config.actor_rollout_ref.rollout.agent.num_workers)

        import transfer_queue
        from omegaconf import OmegaConf

        OmegaConf.resolve(config)
        config.transfer_queue.enable = True
        with ThreadPoolExecutor(1) as executor:  # two processes import torch, here in parallel
            queue = executor.submit(transfer_queue.init, config.transfer_queue)
            from verl.trainer.ppo.v1 import get_trainer_cls

            from ajet_verl.agent.workers import AgentWorkers

            pickle_load_balancer()
            if config.actor_rollout_ref.rollout.name == "vllm":
                start_servers(config)
            queue.result()
        trainer: Any = None
        ended = 1
        try:
            trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
            trainer.init()
            agent_loops = AgentWorkers.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
                early=early,
            )
            sender.post(PhaseNotice("rollout", trainer.global_steps))
            with suppress(RunStoppedError):
                trainer.fit(agent_loops)
            ended = 0
        finally:
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=ended)
            transfer_queue.close()


def pickle_load_balancer() -> None:
    """Pickle verl's load balancer by value, so that its process imports nothing of verl.

    The first request waits for this process.
    """
    from ray import cloudpickle
    from verl.workers.rollout import router

    cloudpickle.register_pickle_by_value(router)


class SavedCallback:
    """Callback class of verl (`trainer.checkpoint_callback_class`) that reports each written checkpoint."""

    def __init__(self, config: Any = None) -> None:
        self._sender = Sender()

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_: Any) -> None:
        """Report a checkpoint to the run's own process. verl calls this after writing each checkpoint."""
        self._sender.post_and_wait(CheckpointNotice(global_step, checkpoint_dir))


# Starts vLLM's servers in processes before verl requests them.
# verl starts the servers after building the model, and their imports take longer than building a small model.
# Invariant: verl finds ajet's servers in its registry of replicas and gets each by name. With several nodes the
# placement of the servers is not known in advance, so no server is started early.
class EarlyReplica(vLLMReplica):
    """verl's group of processes that serve one copy of the model, with servers that ajet starts early."""

    def __init__(self, *args: Any, started: Mapping[str, Any], **kwargs: Any) -> None:
        """Create the replica.

        Args:
            started: actors of the servers that run already, by name.
        """
        super().__init__(*args, **kwargs)
        self.server_class: Any = _ServerClass(started)


class _ServerClass:
    """Replaces the actor class of verl's server, which verl uses only by `options(...).remote(...)`."""

    def __init__(self, started: Mapping[str, Any]) -> None:
        self._started = started

    def options(self, *, name: str, **options: Any) -> _ServerStart:
        return _ServerStart(self._started.get(name) or make_actor_class().options(name=name, **options).remote())


class _ServerStart:
    def __init__(self, server: Any) -> None:
        self._server = server

    def remote(self, **parts: Any) -> Any:
        self._server.begin.remote(**parts)
        return self._server


def make_actor_class() -> Any:
    """Return the Ray actor class of an early server."""
    return ray.remote(make_server_class(vLLMHttpServer.__name__, list_methods()))


def list_methods() -> list[str]:
    """Return the names of the public methods of verl's server."""
    return [name for name, _ in inspect.getmembers(vLLMHttpServer, inspect.isfunction) if not name.startswith("_")]


def start_servers(config: Any) -> None:
    """Make verl use ajet's servers, and start them now if they share the accelerators of a single node.

    Args:
        config: verl's complete config.
    """
    platform, rollout = get_platform(), config.actor_rollout_ref.rollout
    nodes = [node for node in ray.nodes() if node["Alive"] and platform.ray_resource_name() in node["Resources"]]
    like: Any = vLLMReplica(0, rollout, config.actor_rollout_ref.model, gpus_per_node=rollout.n_gpus_per_node)
    is_separate = not config.actor_rollout_ref.get("hybrid_engine", True) or rollout.disaggregation.enabled
    started: dict[str, Any] = {}
    if not is_separate and len(nodes) == like.nnodes == 1:
        options: dict[str, Any] = {
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=nodes[0]["NodeID"], soft=False),
            "runtime_env": {"env_vars": dict.fromkeys(platform.ray_noset_envvars(), "1") | platform.rollout_env_vars()},
            "max_concurrency": like.max_concurrency,
        }
        kind = make_actor_class()
        for rank in range(config.trainer.n_gpus_per_node // like.world_size):
            name = f"{like._get_server_name_prefix()}server_{rank}_0"
            started[name] = kind.options(name=name, **options).remote()
    kind_of_replica: Any = partial(EarlyReplica, started=started)
    RolloutReplicaRegistry.register("vllm", lambda: kind_of_replica)


# EarlyServer: verl's inference server in a process started before verl requests the server.
# Ray loads the actor class in each process with a handle. verl's own class would load all of vLLM in the load
# balancer and in each agent loop. Invariants: this module needs neither vLLM nor verl, and only a server's process
# imports them. Before `begin` only imports run, so no accelerator is touched. Earlier requests wait.
class EarlyServer:
    """Ray actor that imports vLLM early and becomes verl's server in `begin`.

    `make_server_class` adds the methods of verl's server, which are forwarded to it.
    """

    def __init__(self) -> None:
        import verl.workers.rollout.vllm_rollout.vllm_async_server  # noqa: F401

        self._begun = asyncio.Event()
        self._made: Any = None

    async def begin(self, **parts: Any) -> None:
        """Run the constructor of verl's server in a thread. If it fails, later requests raise its exception.

        Args:
            parts: the constructor's arguments.
        """
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

        self._made = asyncio.ensure_future(asyncio.to_thread(vLLMHttpServer, **parts))
        self._begun.set()

    async def _call_server(self, name: str, *args: Any, **kwargs: Any) -> Any:
        await self._begun.wait()
        answer = getattr(await self._made, name)(*args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer


def make_server_class(name: str, methods: Iterable[str]) -> type[EarlyServer]:
    """Return a subclass of EarlyServer that forwards the named methods to verl's server.

    Args:
        name: name of the class.
        methods: names of the methods.
    """
    return type(name, (EarlyServer,), {method: _forward_method(method) for method in methods})


def _forward_method(name: str) -> Callable[..., Awaitable[Any]]:
    async def method(self: EarlyServer, *args: Any, **kwargs: Any) -> Any:
        return await self._call_server(name, *args, **kwargs)

    return method


# verl's trainers with ajet's credit and loss: one thin class per mode, registered under ajet's names.
# Invariant: everything except the methods in `hooks` is verl's own trainer. verl selects the replay buffer and a
# section of the config by the mode's name, so verl's name is restored after the class is found.
POLL_S = 0.25
"""Seconds between two checks for finished groups. verl's 2 s would be most of the time of a small model's step."""


class _CreditTrainer(ReportingHooks, CreditHooks):
    """The common part of the trainers of all modes."""

    mode: ClassVar[str]
    """verl's name of the mode."""

    def __init__(self, config: DictConfig) -> None:
        """Read the settings, then run verl's constructor.

        Raises:
            ValueError: credit and loss do not support a setting.
            UserError: the algorithm is not available on verl.
        """
        plain: Any = OmegaConf.to_container(config, resolve=True)
        self.settings = read_credit_settings(plain)
        self.algorithm = open_algorithm(self.settings)
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.mode
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_S

    def on_init_end(self) -> None:
        """Set ajet's loss after the workers are created."""
        super().on_init_end()
        tokens = TokenLoss.from_settings(self.settings.trainer_common, self.algorithm)
        entropy_coeff = float(self.config.actor_rollout_ref.actor.entropy_coeff or 0)
        self.actor_rollout_wg.set_loss_fn(WeightedSum(tokens, entropy_coeff))


@register_trainer("ajet_sync")
class SyncTrainer(_CreditTrainer, PPOTrainerSync):
    """Samples a batch, then trains on it, in turns."""

    mode = "sync"


@register_trainer("ajet_colocate_async")
class ColocateAsyncTrainer(_CreditTrainer, PPOTrainerColocateAsync):
    """Engine and trainer take turns on the same GPUs. Unfinished episodes continue after the update."""

    mode = "colocate_async"


@register_trainer("ajet_separate_async")
class SeparateAsyncTrainer(_CreditTrainer, PPOTrainerSeparateAsync):
    """Engine and trainer run concurrently on separate GPUs."""

    mode = "separate_async"


@register_trainer("ajet_async")
class DecoupledTrainer(_CreditTrainer, PPOTrainerSync):
    """Trains on episodes of remote samplers. The servers of verl run the validation tasks only."""

    mode = "sync"
    is_decoupled = True
