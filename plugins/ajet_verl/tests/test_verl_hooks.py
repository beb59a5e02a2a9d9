"""What verl keeps private and we replace or rely on: held for the one version that we take.

A failure here after an update of verl means: read that version's `_step_once` and mend `plugins/ajet_verl`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.local_fixtures import config_of, episode_of
from tests.support.verl_fixtures import experiment, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.slow]
MODES = ("sync", "colocate_async", "separate_async")


class Reached(Exception):
    """The line after what a test looks at."""


@pytest.fixture(scope="module")
def base() -> Any:
    from verl.trainer.ppo.v1 import PPOTrainer

    return PPOTrainer


@cache
def composed(mode: str) -> Any:
    """verl's config of a mode, for copies."""
    from omegaconf import OmegaConf

    from ajet_verl.config import compose_verl_config

    apart = {"nnodes": 1, "n_gpus_per_node": 8, "checkpoint_engine": {"backend": "nccl"}}
    own = {"verl": {"actor_rollout_ref": {"rollout": apart}}} if mode == "separate_async" else {}
    return OmegaConf.create(compose_verl_config(experiment({"trainer_common.mode": mode}, **own)))


def hooked(mode: str, **attributes: Any) -> Any:
    """Our trainer of a mode as it is after `init`, but for what verl puts there."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    from ajet_verl.trainer import trainers  # noqa: F401 - registers ours

    config = deepcopy(composed(mode))
    trainer: Any = object.__new__(get_trainer_cls(config.trainer.v1.trainer_mode))
    config.trainer.v1.trainer_mode = mode
    own = {"config": config, "trainer_mode": mode, "settings": config_of(mini_batch_num=4)}
    vars(trainer).update({**own, "processor": None, "global_steps": 5, "parameter_sync_step": 1, **attributes})
    return trainer


def called(function: Any) -> list[str]:
    """The names of the methods that a function calls on `self`, in the order in which they stand."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [
        node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    own = [call for call in calls if isinstance(call.value, ast.Name) and call.value.id == "self"]
    return [call.attr for call in sorted(own, key=lambda call: (call.lineno, call.col_offset))]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_version_is_the_one_that_was_read():
    from ajet_verl.config import VERL_VERSION

    assert metadata.version("verl") == VERL_VERSION == "0.9.1"


def private(ours: Any, base: Any) -> list[str]:
    names = [name for name, value in vars(ours).items() if name.startswith("_") and inspect.isfunction(value)]
    return [name for name in names if name in vars(base) and name != "__init__"]


def test_what_we_replace_is_verls_and_has_its_parameters(base):
    from ajet_verl.trainer.hooks import CreditHooks
    from ajet_verl.trainer.reporting import ReportingHooks

    hooks = private(CreditHooks, base)
    assert hooks == [
        "_init_resource_pool_mgr", "_balance_batch", "_get_required_batch_multiple", "_compute_advantage",
        "_update_actor",
    ]  # fmt: skip
    for name in hooks:
        assert parameters(getattr(CreditHooks, name)) == parameters(getattr(base, name))
    assert private(ReportingHooks, base) == ["_compute_metrics", "_validate"]
    assert parameters(base._compute_metrics)[:4] == ["self", "batch", "metrics", "timing_raw"]
    assert parameters(base._validate) == ["self"]


def test_a_step_calls_them_in_the_order_that_they_need(base):
    order = called(base._step_once)
    hooks = ["_balance_batch", "_compute_old_log_prob", "_compute_ref_log_prob", "_compute_advantage", "_update_actor"]
    assert [name for name in order if name in hooks] == hooks
    assert "_get_required_batch_multiple" in called(base._balance_batch)
    assert "_step_once" in called(base.step)
    assert {"on_init_end", "_setup"} <= set(called(base.init))


def test_a_step_keeps_what_a_hook_answers(base):
    """The batch that a hook returns is the one that goes on, and that `fit` takes out of the queue in the end."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(base._step_once)))
    kept = {
        node.value.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and ast.unparse(node.targets[0]) == "batch"
    }
    assert {"_balance_batch", "_compute_advantage", "_update_actor"} <= kept
    assert "tq.kv_clear(keys=batch.keys" in inspect.getsource(base.fit)


def test_our_trainers_are_verls_of_the_same_mode(base):
    from verl.trainer.ppo.v1 import get_trainer_cls

    from ajet_ray.modes import DECOUPLED
    from ajet_verl.config.refusals import MODES
    from ajet_verl.trainer import trainers
    from ajet_verl.trainer.hooks import CreditHooks

    for name in MODES:
        ours = get_trainer_cls(name)
        mode = "sync" if name == DECOUPLED else name.removeprefix("ajet_")  # what samplers played comes in turns
        verls = get_trainer_cls(mode)
        assert issubclass(ours, verls) and issubclass(ours, CreditHooks) and ours.mode == mode
        assert ours.is_decoupled == (name == DECOUPLED), "tokens of the step before are no canary there"
        assert ours.__mro__.index(CreditHooks) < ours.__mro__.index(verls)
        assert ours.__module__ == trainers.__name__


@pytest.mark.parametrize("mode", MODES)
def test_verl_meets_its_own_name_of_the_mode(base, monkeypatch, mode):
    """By which it chooses its replay buffer and reads the mode's section."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    from ajet_verl.trainer import reporting, trainers  # noqa: F401 - registers ours

    def stop(self: Any, config: Any) -> None:
        assert config.trainer.v1.trainer_mode == mode
        raise Reached

    config = deepcopy(composed(mode))
    ours = get_trainer_cls(config.trainer.v1.trainer_mode)
    monkeypatch.setattr(base, "__init__", stop)
    monkeypatch.setattr(reporting, "Sender", lambda: None)
    with pytest.raises(Reached):
        ours(config)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("schedule", "sees"), [("linear", False), ("constant", True), ("constant", False)])
def test_workers_of_ours_are_those_of_the_mode(base, monkeypatch, mode, schedule, sees):
    """Servers apart from the trainer get their weights from a worker of another kind."""
    import ray
    from verl.experimental.separation.engine_workers import DetachActorWorker
    from verl.trainer.ppo.utils import Role

    from ajet_verl.trainer.hooks import LR_SCHEDULE
    from ajet_verl.trainer.workers import LinearTraining

    trainer = hooked(mode, processor=object() if sees else None)
    trainer.config.trainer[LR_SCHEDULE] = schedule
    role = Role.Actor if mode == "separate_async" else Role.ActorRollout

    def mapping(self: Any) -> None:
        self.role_worker_mapping = {role: "verl's own"}

    monkeypatch.setattr(base, "_init_resource_pool_mgr", mapping)
    monkeypatch.setattr(ray, "remote", lambda worker: worker)
    trainer._init_resource_pool_mgr()
    (worker,) = trainer.role_worker_mapping.values()
    assert issubclass(worker, DetachActorWorker) == (mode == "separate_async")
    assert (worker.actor_worker_cls is LinearTraining) == (schedule == "linear")


@pytest.mark.parametrize(("between", "steps"), [(1, 4), (2, 2), (4, 1)])
def test_a_batch_is_one_of_several_until_the_next_hand_over(between, steps):
    """Servers apart get new weights after `parameter_sync_step` batches: `mini_batch_num` counts over all of them, and
    the policy before the update is the present one only where they are one optimizer step."""

    def of(group: int) -> Any:
        timeline = episode_of(1.0).timelines[0]
        return SimpleNamespace(group=group, episode=f"{group}", weight=1.0, timeline=timeline)

    batch: Any = SimpleNamespace(samples=[of(group) for group in range(4)])
    trainer = hooked("separate_async", parameter_sync_step=between)
    parts = trainer.split_optimizer_steps(batch)
    assert len(parts) == steps

    from transfer_queue import KVBatchMeta

    from ajet_verl.trainer.losses import ON_POLICY

    sent: list[dict[str, Any]] = []

    def update_actor(meta: Any) -> Any:
        sent.append(meta.extra_info)
        raise Reached

    trainer._parts, trainer._ranks = parts, 1
    trainer.actor_rollout_wg = SimpleNamespace(update_actor=update_actor)
    tags = [{"seq_len": 5} for _ in range(4)]
    with pytest.raises(Reached):
        trainer._update_actor(KVBatchMeta(["a", "b", "c", "d"], tags, "train", [], {}), {})
    assert (sent[0]["num_mini_batch"], sent[0][ON_POLICY]) == (steps, False)


@pytest.mark.parametrize(("mode", "at_least"), [("sync", 0), ("colocate_async", 0), ("separate_async", 4)])
def test_the_canary_takes_tokens_of_the_weights_that_the_trainer_has(monkeypatch, mode, at_least):
    """Apart, it has trained on since the last hand-over; in turns, the newest tokens are of its own weights."""
    from ajet_verl.trainer import hooks

    asked: list[int] = []
    monkeypatch.setattr(hooks, "measure_canary_gap", lambda *_, at_least: asked.append(at_least))
    hooked(mode).measure_canary([], [np.zeros(0, np.float32)], [])
    assert asked == [at_least]


def test_the_mode_decides_what_we_think_it_does(base):
    source = inspect.getsource(base.__init__) + inspect.getsource(base._build_replay_buffer)
    assert "self.trainer_mode = self.config.trainer.v1.trainer_mode" in source
    assert 'ReplayBuffer if self.trainer_mode == "sync" else ReplayBufferAsync' in source
    assert 'self.config.trainer.v1.get(self.trainer_mode, {}).get("parameter_sync_step", 1)' in source


def test_a_checkpoint_is_complete_when_its_callback_is_called(base):
    """But for `async_save`, which we refuse; and there is no other callback than the one that the config names."""
    from ajet_verl.config import checkpoints
    from ajet_verl.trainer.process import SavedCallback

    source = inspect.getsource(base._save_checkpoint)
    saved = source.index("self.actor_rollout_wg.save_checkpoint(")
    late = source.index('if actor_ckpt_cfg.get("async_save", False)')
    assert saved < source.index("tq.save_checkpoint(") < late < source.rindex(".on_save(")
    assert f"{SavedCallback.__module__}.{SavedCallback.__name__}" == checkpoints.CALLBACK


@pytest.mark.parametrize("threshold", [1, 2, 4, None])
def test_groups_are_too_old_when_verl_drops_them(threshold, tmp_path):
    from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

    from ajet.schema.episode import Group
    from ajet.schema.task import Task
    from ajet.store import RunStore
    from ajet.task_reader import TaskOrder
    from ajet_ray.tickets import LaunchTickets

    asked = dict(enumerate((1, 1, 2, 3, 5, 7)))
    buffer: Any = object.__new__(ReplayBufferAsync)
    buffer.max_off_policy_threshold, buffer.max_off_policy_strategy = threshold, "drop"
    buffer.prompt_global_steps = {"train": {str(order): step for order, step in asked.items()}}
    for now in range(1, 10):
        buffer.finished_keys = {"train": {str(order) for order, step in asked.items() if step <= now}}
        task = Task(task_id="t")
        tickets = LaunchTickets(
            RunStore(tmp_path / str(now)), TaskOrder([task], 0), batch=len(asked), dropped_after=threshold
        )
        tickets.list_grants()
        for order, step in asked.items():
            if step <= now:
                tickets.close(Group(task, order, [replace(episode_of(1.0), uuid=str(order))]), step)
        stale = tickets.take_step(now, {}).stale
        assert {str(group.order) for group in stale} == buffer._stale_terminal_keys(now, "train")


def test_a_checkpoint_without_rows_is_gone_on_from(base):
    """verl begins to count them anew, and has none that were played."""
    from ajet_ray.tickets import QUEUE, ROWS

    saves, loads = inspect.getsource(base._save_checkpoint), inspect.getsource(base._load_checkpoint)
    for name in (ROWS, QUEUE):
        assert f'"{name}"' in saves
        assert f'(global_step_folder, "{name}")' in loads
    for each in ("dataloader_local_path", "tq_ckpt_path"):
        assert f"if os.path.exists({each}):" in loads


def test_workers_cut_an_update_as_we_count_on():
    """Equal parts for the ranks, of each in order equal parts for the optimizer steps, and the rate moves once."""
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    source = inspect.getsource(TrainingWorker.train_mini_batch)
    assert 'tu.pop(data, key="num_mini_batch", default=None)' in source
    assert "mini_batch_size_per_gpu = batch_size_per_dp // num_mini_batch" in source
    assert "update_lr_scheduler=batch_idx == total_num_iterations - 1" in source
    assert parameters(ActorRolloutRefWorker.set_loss_fn) == ["self", "loss_fn"]
    assert "self.actor.train_mini_batch(data=data)" in inspect.getsource(ActorRolloutRefWorker.update_actor)


def test_the_actors_schedule_is_made_where_we_replace_it(base):
    from verl.experimental.separation.engine_workers import DetachActorWorker
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    from ajet_verl.trainer.workers import LinearActor, LinearDetachedActor

    assert "self._build_lr_scheduler(optimizer)" in inspect.getsource(FSDPEngine._build_model_optimizer)
    assert "self.engine.initialize()" in inspect.getsource(TrainingWorker.reset)
    assert ActorRolloutRefWorker.actor_worker_cls is TrainingWorker
    assert "self.actor = self.actor_worker_cls(config=" in inspect.getsource(ActorRolloutRefWorker.init_model)
    assert issubclass(LinearActor, ActorRolloutRefWorker) and issubclass(LinearDetachedActor, DetachActorWorker)
    assert called(base._setup).index("_init_resource_pool_mgr") > 0
    assert "cls=self.role_worker_mapping[actor_role]" in inspect.getsource(base._setup)


def test_a_group_of_our_workers_passes_a_step():
    """On all of them; verl's group of workers has the methods that it finds registered."""
    from verl.single_controller.base.decorator import MAGIC_ATTR, Dispatch
    from verl.single_controller.ray.base import _bind_workers_method_to_parent
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    from ajet_verl.trainer.workers import Actor, DetachedActor, LinearActor, LinearDetachedActor

    assert "self.lr_scheduler.step()" in inspect.getsource(FSDPEngine.lr_scheduler_step)
    for ours in (Actor, DetachedActor, LinearActor, LinearDetachedActor):
        group: Any = type("WorkerDict", (), {})
        _bind_workers_method_to_parent(group, "actor_rollout", ours)
        assert getattr(group.actor_rollout_pass_step, MAGIC_ATTR)["dispatch_mode"] == Dispatch.ONE_TO_ALL


def test_engines_average_over_ranks_as_verls_own_loss_counts_on():
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead
    from verl.workers.utils.losses import sft_loss

    assert "dp_size=self.get_data_parallel_size()" in inspect.getsource(FSDPEngine.forward_backward_batch)
    assert "loss_function(\n" in inspect.getsource(FSDPEngineWithLMHead.forward_step)
    assert "* dp_size" in inspect.getsource(sft_loss)
    assert parameters(sft_loss)[1:] == ["model_output", "data", "dp_group"]


def test_no_process_computes_rewards_that_episodes_bring():
    """Of no workers verl says an empty list, and not None, which would have the trainer compute them."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.experimental.reward_loop import RewardLoopManager

    manager: Any = object.__new__(RewardLoopManager)
    manager.config, manager.reward_loop_workers = composed("sync"), []
    assert manager.config.reward.num_workers == 0 and manager.reward_loop_worker_handles == []
    assert "final_output.reward_score is None and" in inspect.getsource(AgentLoopWorker._compute_score)


def test_agent_loops_begin_in_processes_that_were_started_before(monkeypatch):
    """verl makes its own where `create` calls what ours replaces, and asks them for nothing but `generate_sequences`,
    which waits for verl's constructor."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    from ajet_verl.agent import early, workers

    assert "await instance._init_agent_loop_workers()" in inspect.getsource(workers.AgentLoopManagerTQ.create)
    monkeypatch.setattr(workers, "Sender", lambda: None)
    begun: list[Any] = []
    process = SimpleNamespace(begin=SimpleNamespace(remote=lambda *parts: begun.append(parts)))
    manager = workers.AgentWorkers.create(config=composed("sync"), llm_client="client", early=[process])
    assert manager.agent_loop_workers == [process] and begun == [(composed("sync"), "client", None, None)]

    class Worker:
        def __init__(self, *parts):
            self.parts, self.asked = parts, []

        async def generate_sequences(self, batch):
            self.asked.append(batch)

    kind = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=Worker))
    assert inspect.isclass(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    monkeypatch.setattr(agent_loop_tq, "AgentLoopWorkerTQ", kind)

    async def both() -> Any:
        loop = early.EarlyAgentLoop()
        await asyncio.gather(loop.generate_sequences("batch"), loop.begin("config", "client"))
        return loop._worker

    worker = asyncio.run(both())
    assert worker.parts == ("config", "client") and worker.asked == ["batch"]


@pytest.fixture
def servers(monkeypatch):
    """Our module for verl's servers of vLLM, whose build for CPUs verl does not find by its name."""
    from ajet_verl.cpu import platform

    pytest.importorskip("vllm")
    monkeypatch.setattr(metadata, "version", metadata.version)
    platform.name_vllm()
    from ajet_verl.trainer import servers

    return servers


class Remote:
    """A method of an actor's."""

    def __init__(self, answer=None):
        self.answer, self.asked = answer, []

    async def remote(self, *args, **kwargs):
        self.asked.append((args, kwargs))
        return self.answer


def test_servers_are_those_that_were_started_before(servers, monkeypatch):
    """verl's own replica takes from ours, by the name and with the options that it starts one with itself."""
    import ray
    from verl.workers.rollout import replica

    made: dict[str, tuple[Any, dict[str, Any]]] = {}

    class Kind:
        def options(self, *, name, **options):
            begun: list[Any] = []
            server = SimpleNamespace(
                begin=SimpleNamespace(remote=lambda **parts: begun.append(parts)),
                get_master_address=Remote(("here", 1, 2)),
                launch_server=Remote(),
                get_server_address=Remote(("10.0.0.1", 80)),
                begun=begun,
            )
            made[name] = server, options
            return SimpleNamespace(remote=lambda: server)

    gpu, cpus = "GPU", {"CPU": 8.0}
    nodes = [{"NodeID": "a" * 56, "Alive": True, "Resources": {gpu: 4.0, **cpus}},
             {"NodeID": "b" * 56, "Alive": True, "Resources": cpus},
             {"NodeID": "c" * 56, "Alive": False, "Resources": {gpu: 8.0}}]  # fmt: skip
    monkeypatch.setattr(servers, "make_actor_class", Kind)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(replica.RolloutReplicaRegistry, "_registry", {})
    config = deepcopy(composed("sync"))
    config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.n_gpus_per_node = 4, 4
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = 2
    servers.start_servers(config)
    assert list(made) == ["vllm_server_0_0", "vllm_server_1_0"]
    before = dict(made)
    made.clear()
    kind = replica.get_rollout_replica_class("vllm")

    def launched(rank):
        each = kind(rank, config.actor_rollout_ref.rollout, "model", gpus_per_node=4)
        where = lambda ask: asyncio.sleep(0, ("a" * 56, "0"))  # noqa: E731
        each.workers = [SimpleNamespace(__ray_call__=SimpleNamespace(remote=where)) for _ in range(2)]
        asyncio.run(each.launch_servers())
        return each

    second = launched(1)
    server, options = before["vllm_server_1_0"]
    assert second.server_handle is server and second.server_address == "10.0.0.1:80" and not made
    assert [parts["replica_rank"] for parts in server.begun] == [1] and not before["vllm_server_0_0"][0].begun
    third = launched(2)
    own, verls = made["vllm_server_2_0"]
    assert third.server_handle is own and [parts["replica_rank"] for parts in own.begun] == [2], "one is started now"
    same = "scheduling_strategy"
    assert vars(options.pop(same)) == vars(verls.pop(same)) and options == verls

    made.clear()
    nodes[2]["Alive"] = True
    servers.start_servers(config)
    assert not made, "it is not known which node will have which"


def test_a_server_answers_once_verls_constructor_is_through(servers, monkeypatch):
    from verl.workers.rollout.vllm_rollout import vllm_async_server as theirs

    from ajet_verl.trainer import server

    assert {"launch_server", "get_master_address", "generate", "sleep", "wake_up"} <= set(servers.list_methods())

    class Verls:
        def __init__(self, replica_rank):
            self.rank = 4 // replica_rank

        def get_server_address(self):
            return self.rank

        async def generate(self, prompt_ids, *, priority=0):
            return [*prompt_ids, priority]

    monkeypatch.setattr(theirs, "vLLMHttpServer", Verls)
    kind: Any = server.make_server_class("vLLMHttpServer", ["get_server_address", "generate"])

    async def asked(rank: int) -> list[Any]:
        one = kind()
        found = await asyncio.gather(
            one.get_server_address(),
            one.begin(replica_rank=rank),
            one.generate([7], priority=3),
            return_exceptions=True,
        )
        return [found[0], found[2]]

    assert asyncio.run(asked(2)) == [2, [7, 3]]
    assert all(isinstance(each, ZeroDivisionError) for each in asyncio.run(asked(0)))


def test_neither_vllm_nor_verl_is_loaded_for_a_servers_handle_or_the_load_balancer(servers, tmp_path):
    """Ray has whoever gets a handle load the actor's class."""
    import subprocess
    import sys

    from ray import cloudpickle
    from verl.workers.rollout import router

    from ajet_verl.trainer.process import pickle_load_balancer

    pickle_load_balancer()
    try:
        kinds = servers.make_actor_class().__ray_metadata__.modified_class, router.GlobalRequestLoadBalancer
        (tmp_path / "kinds").write_bytes(cloudpickle.dumps(kinds))
    finally:
        cloudpickle.unregister_pickle_by_value(router)
    code = (
        "import sys; from ray import cloudpickle; server, balancer = cloudpickle.load(open(sys.argv[1], 'rb')); "
        "print(balancer(servers={'here': 'it'}).acquire_server('a'), server.__name__, server.generate.__name__, "
        "[name for name in ('verl', 'vllm', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "kinds"], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "('here', 'it') vLLMHttpServer method []", done.stdout + done.stderr


def test_an_agent_loop_in_anothers_place_that_cannot_begin_is_ended(monkeypatch):
    """Alive it would hold its tasks for ever; the next look at the processes finds it dead."""
    import ray

    from ajet_verl.agent import workers

    manager = object.__new__(workers.AgentWorkers)
    process = SimpleNamespace(begin=SimpleNamespace(remote=lambda *parts: "begun"))
    manager.agent_loop_workers, manager._sent, manager.later_begins = [None], [{}], {}
    manager.config = manager.llm_client = manager.teacher_client = manager.reward_loop_worker_handles = None
    manager._sender = SimpleNamespace(post=lambda word: None)
    monkeypatch.setattr(workers, "start_agent_loop", lambda name: process)
    monkeypatch.setattr(workers.transfer_queue, "kv_list", dict)
    manager.replace_worker(0, "killed")
    ready, ended = [], []
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (ready, refs))
    monkeypatch.setattr(ray, "kill", ended.append)
    monkeypatch.setattr(
        ray, "get", lambda ref: (_ for _ in ()).throw(ray.exceptions.RayTaskError("begin", "", OSError()))
    )
    manager.kill_failed_workers()
    assert not ended and manager.later_begins == {0: "begun"}, "it is still at work"
    ready.append("begun")
    manager.kill_failed_workers()
    manager.kill_failed_workers()
    assert ended == [process]
