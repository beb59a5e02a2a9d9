"""Sends new weights to separate inference servers over gloo, for separate_async without accelerators.

verl's own transfers need NCCL or RDMA. verl imports this module by `checkpoint_engine.custom_backend_module`.
Invariants: the first trainer rank sends every weight completely and in order to every server's worker, and the other
ranks help to gather the weights. Each transfer has its own group, so servers may join and leave in between. For tests:
one weight at a time, without overlap.
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
"""Size in bytes of a tensor's header: pickled name, shape and dtype, or None at the end."""


@CheckpointEngineRegistry.register("gloo")
class GlooWeights(CheckpointEngine):
    """One end of the weight transfer, in a worker of the trainer or of an inference server."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> dict[str, Any]:
        """Open a store on the first trainer rank and return its address, or {} on any other rank."""
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
        """Return the arguments of `init_process_group` for each worker of the trainer and of the servers.

        Of the trainer's ranks only the first joins the group. The others get rank -1.

        Args:
            actor_wg_world_size: number of trainer ranks.
            rollout_world_size: number of server workers.
            metadata: results of `prepare`; the first is the address of the store.
        """
        group_size = rollout_world_size + 1

        def build_arguments(ranks: list[int]) -> dict[str, list[Any]]:
            """Return the arguments of `init_process_group` for workers with these ranks, as lists with one entry per
            worker."""
            count = len(ranks)
            return {"rank": ranks, "world_size": [group_size] * count, "master": [metadata[0]] * count}

        return build_arguments([0] + [-1] * (actor_wg_world_size - 1)), build_arguments(list(range(1, group_size)))

    def init_process_group(self, rank: int, world_size: int, master: dict[str, Any]) -> None:  # type: ignore[override]
        """Join the process group of this transfer. A rank below 0 stays outside."""
        if rank < 0:
            return
        if rank > 0:
            self._store = dist.TCPStore(master["host"], master["port"], is_master=False, timeout=PATIENCE)
        self._group = dist.ProcessGroupGloo(self._store, rank, world_size, PATIENCE)

    def finalize(self) -> None:
        """Leave the process group of this transfer."""
        self._group = self._store = None

    @torch.no_grad()
    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send all weights from the first trainer rank to the servers.

        Every trainer rank must iterate over the weights, because gathering a weight needs all ranks.

        Args:
            weights: names and complete tensors, in sending order.
        """
        # Other ranks have no group; they only take part in gathering, which iterating does.
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
        """Yield (name, weight) for each weight, in the order of sending."""
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
        """Broadcast a tensor from rank 0 to the transfer's group, in a thread so that the event loop stays free."""
        await asyncio.to_thread(lambda: self._group.broadcast([data]).wait())


def _pack_header(description: Any) -> torch.Tensor:
    """Return a tensor of HEADER bytes that holds the pickled description, filled up with zeros."""
    packed = pickle.dumps(description)
    assert len(packed) <= HEADER, f"{len(packed)} bytes to describe a weight"
    return torch.frombuffer(bytearray(packed.ljust(HEADER, b"\0")), dtype=torch.uint8)
