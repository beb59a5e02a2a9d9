"""Both agent loops, and both clients, at one vLLM server of verl, in turns. Run by bench_verl.py, never by itself.

    one_server.py SETTING.json YAML ROUNDS CONCURRENCY      lines of JSON on standard output

verl's parts are wired as its trainer wires them (TransferQueue, a server, a reward process, a manager with one
agent-loop process for each side), but without a trainer, whose replay buffer looks for finished groups every 2 s only.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil
from settings import Setting, configs, experiment_of

POLL_S = 0.02


def tell(**values: Any) -> None:
    print("BENCH " + json.dumps(values), flush=True)


def cpu_seconds() -> float:
    """Of this process and all that it started."""
    me, total = psutil.Process(), 0.0
    for each in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # one of Ray's spare processes
            total += sum(each.cpu_times()[:2])
    return total


class Play:
    """Hands a batch to a manager as verl's trainer does, and waits for the last group."""

    def __init__(self, setting: Setting, managers: dict[str, Any], rows: dict[str, Any]) -> None:
        self._setting, self._managers, self._rows = setting, managers, rows

    def round(self, number: int, side: str) -> dict[str, Any]:
        import numpy as np
        import transfer_queue as tq
        from verl.utils import tensordict_utils as tu
        from verl.utils.dataset.rl_dataset import collate_fn

        first = number * self._setting.tasks
        rows = collate_fn([self._rows[side](first + at) for at in range(self._setting.tasks)])
        uids = [str(uuid.uuid4()) for _ in range(self._setting.tasks)]
        rows["uid"] = np.array(uids, dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", number + 1)
        tag = {"is_prompt": True, "status": "pending", "global_steps": number + 1}
        used, began = cpu_seconds(), time.perf_counter()
        tq.kv_batch_put(keys=uids, partition_id="train", tags=[dict(tag) for _ in uids])
        self._managers[side].generate_sequences(batch)
        while True:
            listed = tq.kv_list("train").get("train", {})
            if all(listed.get(uid, {}).get("status") in ("finished", "failure") for uid in uids):
                break
            time.sleep(POLL_S)
        seconds, used = time.perf_counter() - began, cpu_seconds() - used
        assert not [uid for uid in uids if listed[uid]["status"] == "failure"], f"{side}: a group failed"
        replies = [tag["response_len"] for tag in listed.values() if not tag.get("is_prompt")]
        tq.kv_clear(keys=list(listed), partition_id="train")
        counts = {"episodes": len(replies), "tokens": sum(replies)}
        return {"part": "loop", "side": side, "seconds": seconds, "cpu": used, **counts}


class Ask:
    """The same prompts to the server, by verl's client and through our gateway, so many at a time."""

    def __init__(self, setting: Setting, experiment: Any, client: Any, tokenizer: Any, concurrency: int) -> None:
        from one_turn import question

        from ajet.rollout.components import open_gateway
        from ajet_verl.agent.engine import ServerEngine

        self._setting, self._client, self._width = setting, client, concurrency
        rollout = experiment.ajet.rollout
        engine = ServerEngine(client, max_model_len=rollout.max_model_len, vocabulary=len(tokenizer), server="vllm")
        self._gateway = open_gateway(experiment, engine, tokenizer)
        count = setting.tasks * setting.samples
        self._messages = [[{"role": "user", "content": question(at // setting.samples)}] for at in range(count)]
        self._prompts = [
            list(tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=False))
            for each in self._messages
        ]

    def round(self, side: str) -> dict[str, Any]:
        one = {"client": self._by_client, "gateway": self._by_gateway}[side]

        async def everything() -> list[int]:
            free = asyncio.Semaphore(self._width)

            async def bounded(at: int) -> int:
                async with free:
                    return await one(at)

            return await asyncio.gather(*(bounded(at) for at in range(len(self._prompts))))

        began = time.perf_counter()
        # both on the loop on which the gateway asks: a thread of its own beside this one
        tokens = self._gateway.call(everything()).result()
        return {"part": "client", "side": side, "seconds": time.perf_counter() - began, "tokens": sum(tokens)}

    def close(self) -> None:
        self._gateway.close()

    async def _by_client(self, at: int) -> int:
        params: dict[str, Any] = {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
        }
        params["max_tokens"] = self._setting.reply
        output = await self._client.generate(uuid.uuid4().hex, prompt_ids=self._prompts[at], sampling_params=params)
        assert len(output.token_ids) == len(output.log_probs)
        return len(output.token_ids)

    async def _by_gateway(self, at: int) -> int:
        from ajet.engine.contract import Sampling
        from benchmarks.direct_call import call_model

        session = self._gateway.open(
            uuid.uuid4().hex, key=(0, at, 0), sampling=Sampling(self._setting.reply), trainable=None
        )
        await call_model(session, self._messages[at])
        (call,) = session.close().calls
        assert call.suffix_ids.tolist() == self._prompts[at], "both sides ask with the same ids"
        return len(call.response_ids)


def main() -> None:
    setting = Setting(**json.loads(Path(sys.argv[1]).read_text()))
    experiment = experiment_of(Path(sys.argv[2]))
    rounds, concurrency = int(sys.argv[3]), int(sys.argv[4])
    from ajet_ray.cluster.ray_cluster import QUIET, connect_to_ray
    from ajet_verl.settings import build_environment, build_needs

    ours, theirs = configs(experiment)
    environment = build_environment(ours)
    os.environ.update({**QUIET, **environment, "OMP_NUM_THREADS": "1"})
    for config in (ours, theirs):
        config["actor_rollout_ref"]["rollout"].update(nnodes=1, n_gpus_per_node=1, load_format="auto")
        config["transfer_queue"]["enable"] = True
    with (
        tempfile.TemporaryDirectory() as temporary,
        connect_to_ray(
            build_needs(ours),
            address=None,
            folder=experiment.base,
            environment=environment,
            temporary=Path(temporary),
        ),
    ):
        measure(setting, experiment, ours, theirs, rounds, concurrency)


def measure(setting: Setting, experiment: Any, ours: Any, theirs: Any, rounds: int, concurrency: int) -> None:
    """With somebody who takes what ours posts for the record, and knows what its tickets are for."""
    import ray

    from ajet.task_reader import TaskOrder, open_reader
    from ajet_ray.mailbox import TicketGrant, open_mailbox

    mailbox, ended = open_mailbox(), threading.Event()
    order = TaskOrder(open_reader(experiment).tasks("train"), seed=experiment.ajet.seed)
    places = range((rounds + 2) * setting.tasks)
    ray.get(mailbox.know.remote([TicketGrant(place, order.task(place)) for place in places], places))

    def record() -> None:
        while not ended.is_set():
            ray.get(mailbox.take.remote(1.0))

    recorder = threading.Thread(target=record)
    recorder.start()
    try:
        take_turns(setting, experiment, ours, theirs, rounds, concurrency)
    finally:
        ended.set()
        recorder.join()


def take_turns(setting: Setting, experiment: Any, ours: Any, theirs: Any, rounds: int, concurrency: int) -> None:
    """Both sides of both comparisons."""
    import torch
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from one_turn import verl_row
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.llm_server import LLMServerManager

    from ajet_verl.agent.workers import AgentWorkers
    from ajet_verl.dataset import TaskRows

    ours, theirs = OmegaConf.create(ours), OmegaConf.create(theirs)
    tq.init(ours.transfer_queue)
    servers = LLMServerManager.create(config=theirs)
    rewards = RewardLoopManager(config=theirs).reward_loop_worker_handles
    parts = {"llm_client": servers.get_client(), "teacher_client": None, "reward_loop_worker_handles": rewards}
    managers = {
        "verl": AgentLoopManagerTQ.create(config=theirs, **parts),
        "ours": AgentWorkers.create(config=ours, **parts),
    }
    tokenizer = omega_conf_to_dataclass(ours.actor_rollout_ref.model).tokenizer
    tasks = TaskRows("train", tokenizer, None, ours.data)

    def row_of_verl(number: int) -> dict[str, Any]:
        row = verl_row(number)
        return {"raw_prompt": row.pop("prompt"), "index": number, "dummy_tensor": torch.zeros(1), **row}

    play = Play(setting, managers, {"verl": row_of_verl, "ours": tasks.__getitem__})
    for number in range(-2, rounds):
        sides = ("verl", "ours") if number % 2 else ("ours", "verl")
        for side in sides:
            tell(**play.round(number + 2, side), warm=number >= 0)
    ask = Ask(setting, experiment, servers.get_client(), tokenizer, concurrency)
    for number in range(-1, rounds):
        for side in ("client", "gateway") if number % 2 else ("gateway", "client"):
            tell(**ask.round(side), warm=number >= 0)
    ask.close()


if __name__ == "__main__":
    main()
