"""New weights for inference servers of their own, over gloo: the mode separate_async on machines without accelerators.

verl's own ways to send weights need NCCL or RDMA. It imports this module by `checkpoint_engine.custom_backend_module`.
Invariant: the first trainer rank sends every weight whole and in order to every server's worker; the other ranks only
help to gather it. Each sending has a group of its own, so that servers may come and go in between. It is for tests: one
weight at a time, without overlap.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

PATIENCE = timedelta(minutes=10)
HEADER = 4096
"""Bytes that say what comes next: pickled name, shape and dtype, or None at the end."""


@CheckpointEngineRegistry.register("gloo")
class GlooWeights(CheckpointEngine):
    """One end of the transfer of weights, in a trainer's worker or beside a server's."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> dict[str, Any]:
        """The address at which the others find the first trainer rank."""
        if not self.is_master:
            return {}
        import ray

        host = ray.util.get_node_ip_address().strip("[]")
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
        return {"host": host, "port": self._store.port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The arguments of every worker's `init_process_group`; trainer ranks but the first are in no group."""
        world = rollout_world_size + 1

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {"rank": ranks, "world_size": [world] * count, "master": [metadata[0]] * count}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, world)))

    def init_process_group(self, rank: int, world_size: int, master: dict[str, Any]) -> None:  # type: ignore[override]
        """Meet the others."""
        if rank < 0:
            return
        if rank > 0:
            self._store = dist.TCPStore(master["host"], master["port"], is_master=False, timeout=PATIENCE)
        self._group = dist.ProcessGroupGloo(self._store, rank, world_size, PATIENCE)

    def finalize(self) -> None:
        """Part."""
        self._group = self._store = None

    @torch.no_grad()
    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Every trainer rank walks through the weights, since each is gathered by all; the first sends them."""
        for name, weight in weights:
            if self._group is None:
                continue
            tensor = weight.detach().cpu().contiguous()
            await self._broadcast_tensor(_pack_header((name, tuple(tensor.shape), tensor.dtype)))
            if tensor.numel():
                await self._broadcast_tensor(tensor.view(-1).view(torch.uint8))
        if self._group is not None:
            await self._broadcast_tensor(_pack_header(None))

    async def receive_weights(  # type: ignore[override]
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Names and weights as they were sent."""
        while True:
            header = torch.empty(HEADER, dtype=torch.uint8)
            await self._broadcast_tensor(header)
            description = pickle.loads(header.numpy().tobytes())
            if description is None:
                return
            name, shape, dtype = description
            weight = torch.empty(shape, dtype=dtype)
            if weight.numel():
                await self._broadcast_tensor(weight.view(-1).view(torch.uint8))
            yield name, weight

    async def _broadcast_tensor(self, data: torch.Tensor) -> None:
        await asyncio.to_thread(lambda: self._group.broadcast([data]).wait())


def _pack_header(description: Any) -> torch.Tensor:
    packed = pickle.dumps(description)
    assert len(packed) <= HEADER, f"{len(packed)} bytes to describe a weight"
    return torch.frombuffer(bytearray(packed.ljust(HEADER, b"\0")), dtype=torch.uint8)
