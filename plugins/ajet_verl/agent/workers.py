"""AgentWorkers: verl's manager of agent-loop processes, extended to replace dead processes.

verl distributes its tasks once, so it would wait forever for the tasks of a dead process. Invariants: a task is run
again completely in a new process if its process died or a replacement process could not start. The episodes keep their
names, and rows of the dead process are removed first. A task whose process dies each time is given up and counts as
failed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import ray
import transfer_queue
from loguru import logger
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.tensordict_utils import index_select_tensor_dict

from ajet_ray.mailbox import DeathNotice, Sender, TicketFailure
from ajet_verl.agent.early import start_agent_loop, start_agent_loops

POLL_S = 3.0
"""Seconds between two checks of the processes."""
MAX_TRIES = 2
"""Maximum number of starts of a task whose process dies each time."""


class AgentWorkers(AgentLoopManagerTQ):
    """Replaces verl's manager, as `actor_rollout_ref.rollout.agent.agent_loop_manager_class`."""

    agent_loop_workers: list[Any]

    def __init__(self, *args: Any, early: Sequence[Any] = (), **kwargs: Any) -> None:
        """Create the manager.

        Args:
            early: actors of agent-loop processes that were started before; if empty, the manager starts them.
        """
        super().__init__(*args, **kwargs)
        self._early_server = early
        self._first_begins: list[Any] = []
        """Results of `begin` of the first processes, until tasks are distributed."""
        self.later_begins: dict[int, Any] = {}
        """Pending results of `begin` of replacement processes, by index in `agent_loop_workers`."""
        self._lock = threading.Lock()
        self._sent: list[dict[str, Any]] = []
        """Unfinished tasks per process: the task's uid -> its row."""
        self._tries = Counter[str]()
        self._sender = Sender()

    async def _init_agent_loop_workers(self) -> None:
        """Collect or start the agent-loop processes, and start their constructors. verl's constructor calls this
        method."""
        self.agent_loop_workers = [*(self._early_server or start_agent_loops(self.rollout_config.agent.num_workers))]
        self._first_begins = [self._begin_worker(worker) for worker in self.agent_loop_workers]

    def _begin_worker(self, worker: Any) -> Any:
        """Start the constructor of verl's agent-loop worker in a process, and return ray's reference to its result."""
        return worker.begin.remote(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)

    def generate_sequences(self, prompts: Any) -> None:
        """Distribute a batch of tasks over the processes, and return once the processes have received them."""
        for begun in self._first_begins:
            with suppress(ray.exceptions.RayActorError):  # a dead process is replaced later
                ray.get(begun)
        self._first_begins = []
        if not self._sent:
            self._sent = [{} for _ in self.agent_loop_workers]
            threading.Thread(target=self._watch_workers, name="ajet-agent-workers", daemon=True).start()
        size = -(-len(prompts) // len(self.agent_loop_workers))
        row_ranges = [range(first, min(first + size, len(prompts))) for first in range(0, len(prompts), size)]
        # The rows are selected by verl's function, since rows of a resumed run have nested tensors.
        chunks = [index_select_tensor_dict(prompts, [*row_range]) for row_range in row_ranges]
        with self._lock:
            self._forget_ended_tasks()
            for worker_index, row_range in enumerate(row_ranges):
                for row in row_range:
                    self._sent[worker_index][prompts["uid"][row]] = index_select_tensor_dict(prompts, [row])
            # With fewer tasks than processes there are fewer chunks.
            pairs = zip(self.agent_loop_workers, chunks, strict=False)
            delivered = [worker.generate_sequences.remote(chunk) for worker, chunk in pairs]
        for delivery in delivered:
            try:
                ray.get(delivery)
            except ray.exceptions.RayActorError:
                logger.warning("an agent-loop process died while receiving tasks; another process will run them")

    def _watch_workers(self) -> None:
        """Check the processes every POLL_S seconds, and replace dead ones. Runs in a thread for the life of this
        process."""
        while True:
            ready = [worker.__ray_ready__.remote() for worker in self.agent_loop_workers]
            ray.wait(ready, num_returns=len(ready), timeout=POLL_S)
            for worker_index, ready_ref in enumerate(ready):
                try:
                    ray.get(ready_ref, timeout=0)
                except ray.exceptions.GetTimeoutError:
                    continue  # alive and busy
                except ray.exceptions.ActorUnavailableError:
                    continue  # ray cannot reach the process at the moment, which does not mean that it died
                except ray.exceptions.RayActorError as death:
                    with self._lock:
                        self.replace_worker(worker_index, str(death).strip().splitlines()[0])
            self.kill_failed_workers()
            threading.Event().wait(POLL_S)

    def kill_failed_workers(self) -> None:
        """Kill replacement processes whose `begin` failed, so that the next check replaces them.

        If they stayed alive, their tasks would never run.
        """
        for worker_index, start_result in list(self.later_begins.items()):
            if not ray.wait([start_result], timeout=0)[0]:
                continue
            del self.later_begins[worker_index]
            try:
                ray.get(start_result)
            except ray.exceptions.RayTaskError as failure:
                logger.warning("an agent-loop process failed to start and is replaced: {}", failure.cause)
                ray.kill(self.agent_loop_workers[worker_index])
            except ray.exceptions.RayActorError:
                continue  # the process died, and the next check replaces it

    def replace_worker(self, place: int, why: str) -> None:
        """Start a process in place of a dead one, and give it the unfinished tasks of the dead process.

        Args:
            place: index of the process in `agent_loop_workers`.
            why: cause of the death, for the log.
        """
        logger.warning("an agent-loop process died ({}); another takes its tasks", why)
        self._sender.post(DeathNotice("agent loop", why))
        self._forget_ended_tasks()
        self.agent_loop_workers[place] = worker = start_agent_loop(f"agent_loop_{place}_{uuid4().hex[:8]}")
        self.later_begins[place] = self._begin_worker(worker)
        for uid, row in list(self._sent[place].items()):
            partition = "val" if row["split"][0] == "validation" else "train"
            # The new process writes the same keys: rows of the dead process would be mixed with its rows.
            old_keys = [
                key for key in transfer_queue.kv_list(partition).get(partition, {}) if key.startswith(f"{uid}_")
            ]
            if old_keys:
                transfer_queue.kv_clear(keys=old_keys, partition_id=partition)
            self._tries[uid] += 1
            if self._tries[uid] < MAX_TRIES:
                worker.generate_sequences.remote(row)
            else:
                # verl's trainer must not wait for the task's rows, nor the run's own process for its episodes.
                transfer_queue.kv_put(key=uid, partition_id=partition, tag={"status": "failure"})
                if partition == "train":
                    self._sender.post(TicketFailure(int(row["index"][0])))
                del self._sent[place][uid]

    def _forget_ended_tasks(self) -> None:
        """Remove tasks from `_sent` that are neither pending nor running in verl's transfer queue any more."""
        partitions = transfer_queue.kv_list() or {}
        unfinished_uids = {
            key
            for tags_by_key in partitions.values()
            for key, tag in tags_by_key.items()
            if tag.get("is_prompt") and tag.get("status") in ("pending", "running")
        }
        for tasks in self._sent:
            for uid in [uid for uid in tasks if uid not in unfinished_uids]:
                del tasks[uid]
