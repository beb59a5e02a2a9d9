"""verl's trainer, worker and FSDP engine, a process a rank: `python -m tests.contract.verl_update FOLDER PORT …`.

The ports are those of the stores of worlds: of one rank, of two, and so on, one world after the other. What its ranks
do stands in FOLDER/WORLD.scenarios, what they found in FOLDER/WORLD.results. Ranks are forked from this process, which
has imported verl (13 seconds).

What is verl's is verl's own: the steps of its trainer between sampling and saving, the worker, the engine and its
optimizer. Stand-ins are the queue (a dict in memory) and the worker group, which calls the worker of this process with
its rank's part of a batch. It needs a process of its own: the environment must be set before verl is imported.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


class Queue:
    """TransferQueue's functions that the trainer's steps call."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, keys: Any, partition_id: str, fields: Any = None, tags: Any = None) -> Any:
        from transfer_queue import KVBatchMeta

        for index, key in enumerate(keys):
            if tags is not None:
                self.tags[key] = tags[index]
            row = self.rows.setdefault(key, {})
            for name in fields.keys() if fields is not None else ():
                values = fields[name]
                row[name] = (values.unbind() if isinstance(values, torch.Tensor) else list(values))[index]
        names = set.intersection(*(set(self.rows[key]) for key in keys))
        return KVBatchMeta(list(keys), [self.tags[key] for key in keys], partition_id, sorted(names), {})

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: Any = None) -> Any:
        from tensordict import NonTensorStack, TensorDict

        names = [name for name in select_fields or self.rows[keys[0]] if all(name in self.rows[key] for key in keys)]
        data = {}
        for name in names:
            values = [self.rows[key][name] for key in keys]
            tensors = all(isinstance(value, torch.Tensor) for value in values)
            data[name] = (
                torch.nested.as_nested_tensor(values, layout=torch.jagged) if tensors else NonTensorStack(*values)
            )
        return TensorDict(data, batch_size=[len(keys)])

    def kv_clear(self, keys: Any, partition_id: str) -> None:
        for key in keys:
            del self.rows[key], self.tags[key]


def everyones(value: Any) -> list[Any]:
    """Each rank's. Of ranks that have the same rows verl's worker answers on the first alone, on the others None."""
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


class Group:
    """A worker group of which this process is one rank; `split`: ranks that have the same rows."""

    def __init__(self, queue: Queue, worker: Any, role: str, rank: int, world: int, split: int = 1) -> None:
        self.queue, self.worker, self.rank, self.world = queue, worker, rank // split, world // split
        self._dispatch_info = {role: [each // split for each in range(world)]}

    def _part(self, meta: Any) -> tuple[Any, Any]:
        from verl.utils import tensordict_utils as tu

        part = meta.chunk(self.world)[self.rank]
        data = self.queue.kv_batch_get(part.keys, part.partition_id, part.fields)
        for name, value in meta.extra_info.items():
            tu.assign_non_tensor_data(data, name, value)
        return part, data

    def _logprobs(self, meta: Any, method: str) -> Any:
        part, data = self._part(meta)
        output = getattr(self.worker, method)(data)
        mine = [
            (key, {name: output[name].unbind()[index] for name in ("log_probs", "entropy") if name in output})
            for index, key in enumerate(part.keys if output is not None else ())
        ]
        for key, fields in sum(everyones(mine), []):
            self.queue.rows[key].update(fields)
        return meta

    def compute_log_prob(self, meta: Any) -> Any:
        return self._logprobs(meta, "compute_log_prob")

    def compute_ref_log_prob(self, meta: Any) -> Any:
        return self._logprobs(meta, "compute_ref_log_prob")

    def pass_step(self) -> None:
        self.worker.pass_step()

    def update_actor(self, meta: Any) -> Any:
        output = self.worker.update_actor(self._part(meta)[1])
        told = everyones(None if output is None else {"metrics": dict(output["metrics"])})
        return output if output is not None else next(each for each in told if each is not None)


def worker_of(config: Any, role: str) -> Any:
    from ajet_verl.trainer.workers import Actor, LinearActor

    kind = LinearActor if config.trainer.ajet_lr_schedule == "linear" else Actor
    worker = kind(config=deepcopy(config.actor_rollout_ref), role=role)  # it changes its own
    worker.init_model()
    return worker


def trainer_of(config: Any, queue: Queue, rank: int, world: int) -> Any:
    """verl's trainer with our hooks as it is after `init`, but for what needs Ray."""
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from ajet.algorithm import open_algorithm
    from ajet.algorithm.token_loss import TokenLoss
    from ajet_verl.config.credit import read_credit_settings
    from ajet_verl.trainer.hooks import CreditHooks
    from ajet_verl.trainer.losses import WeightedSum

    trainer: Any = object.__new__(type("Hooked", (CreditHooks, PPOTrainerSync), {}))
    trainer.config, trainer.settings = config, read_credit_settings(config)
    trainer.algorithm = open_algorithm(trainer.settings)
    trainer.use_critic, trainer.use_reference_policy = False, need_reference_policy(config)
    trainer.parameter_sync_step, trainer.global_steps = 1, 1
    split = config.actor_rollout_ref.actor.ulysses_sequence_parallel_size
    trainer.ref_in_actor = config.actor_rollout_ref.model.get("lora_rank", 0) > 0
    trainer.tokenizer = SimpleNamespace(eos_token_id=2, pad_token_id=0)
    if trainer.use_reference_policy and not trainer.ref_in_actor:
        trainer.ref_policy_wg = Group(queue, worker_of(config, "ref"), "ref", rank, world, split)
    actor = worker_of(config, "actor")
    actor.set_loss_fn(WeightedSum(TokenLoss.from_settings(trainer.settings.trainer_common, trainer.algorithm)))
    trainer.actor_rollout_wg = Group(queue, actor, "actor", rank, world, split)
    return trainer


def play(queue: Queue, groups: list[Any]) -> Any:
    """The rows of some groups, as verl's agent loop worker puts them into the queue."""
    from transfer_queue import KVBatchMeta
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    from ajet_ray.rows import build_rows

    keys, tags = [], []
    for number, group in enumerate(groups):
        for episode in group.episodes:
            for index, row in enumerate(build_rows(episode, group_order=group.order)):
                key = f"u{number}_{episode.repeat}_{index}"
                fields = AgentLoopOutput(**row).as_dict()
                ids = torch.cat([fields["prompts"], fields["responses"]])
                fields |= {"loss_mask": fields["response_mask"], "input_ids": ids, "multi_modal_inputs": {}}
                queue.rows[key] = fields | {"position_ids": torch.arange(ids.numel()), "uid": f"u{number}"}
                queue.tags[key] = {"status": "success", "seq_len": ids.numel()}
                keys.append(key)
                tags.append(queue.tags[key])
    return KVBatchMeta(keys, tags, "train", None, {})


def step(trainer: Any, batch: Any) -> dict[str, Any]:
    """What `PPOTrainer._step_once` does after sampling."""
    metrics: dict[str, Any] = {}
    batch = trainer._balance_batch(batch, metrics=metrics)
    batch = trainer._compute_old_log_prob(batch, metrics=metrics)
    if trainer.use_reference_policy:
        batch = trainer._compute_ref_log_prob(batch, metrics=metrics)
    batch = trainer._compute_advantage(batch, metrics=metrics)
    trainer._update_actor(batch, metrics=metrics)
    return metrics


def parameters(engine: Any) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor

    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone().numpy()
        for name, value in engine.module.named_parameters()
    }


def gradients(engine: Any) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor

    return {
        name: (value.grad.full_tensor() if isinstance(value.grad, DTensor) else value.grad).detach().clone().numpy()
        for name, value in engine.module.named_parameters()
        if value.grad is not None
    }


def run(scenario: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """The gradients of every optimizer step, the metrics of every step, and the weights at the end."""
    import transfer_queue
    from omegaconf import OmegaConf

    queue, config = Queue(), OmegaConf.create(scenario["config"])
    config.actor_rollout_ref.actor.optim.total_training_steps = config.trainer.total_training_steps or -1
    for name in ("kv_batch_put", "kv_batch_get", "kv_clear"):
        setattr(transfer_queue, name, getattr(queue, name))
    torch.manual_seed(0)  # adapters begin at random
    trainer = trainer_of(config, queue, rank, world)
    engine = trainer.actor_rollout_wg.worker.actor.engine
    if "head_bytes" in scenario:
        assert engine._read_in_head
        engine.head_bytes = scenario["head_bytes"]
    if "random trees" in scenario:
        from tests.contract.verl_random_trees import check

        return {"worst": check(engine, scenario["random trees"])}
    found: list[dict[str, Any]] = []
    inner = engine.optimizer_step

    def optimizer_step() -> Any:
        found.append(gradients(engine))
        return inner()

    engine.optimizer_step = optimizer_step
    metrics = []
    for number, groups in enumerate(scenario["steps"], 1):
        trainer.global_steps = number
        batch = play(queue, groups)
        metrics.append(step(trainer, batch))
        queue.rows.clear()
    packed = {"packed": getattr(engine, "packed", False), "computed": getattr(engine, "computed", None)}
    packed["attention"] = engine.theirs if packed["packed"] else engine.module.config._attn_implementation
    return {"gradients": found, "metrics": metrics, "weights": parameters(engine), **packed}


def one_name_for_padding() -> None:
    """In life one controller names the rows that make numbers divisible; here each rank has its own."""
    import random
    import uuid

    from verl.trainer.ppo import padding_utils

    from ajet_verl.trainer import hooks

    draw = random.Random(0)
    named: Any = SimpleNamespace(uuid4=lambda: uuid.UUID(int=draw.getrandbits(128)))
    padding_utils.uuid = hooks.uuid = named


def rank_of(folder: Path, rank: int, world: int, port: str) -> None:
    """One rank's work, in a process of its own."""
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world), LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    one_name_for_padding()
    scenarios = pickle.loads((folder / f"{world}.scenarios").read_bytes())
    results = {name: run(scenario, rank, world) for name, scenario in scenarios.items()}
    if rank == 0:
        (folder / f"{world}.results").write_bytes(pickle.dumps(results))


def main(folder: Path, ports: list[str]) -> int:
    gc.disable()  # as in tests/support/ajet_zygote.py
    import verl.trainer.ppo.v1
    import verl.workers.engine_workers  # noqa: F401

    import ajet_verl.trainer.hooks  # noqa: F401

    gc.freeze()
    gc.enable()
    fork = multiprocessing.get_context("fork")
    for world, port in enumerate(ports, 1):
        ranks = [fork.Process(target=rank_of, args=(folder, rank, world, port)) for rank in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
