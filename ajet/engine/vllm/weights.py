"""An update's way from the trainer to vLLM's worker, on the trainer's side.

Invariant: beside vLLM's own copy of the weights an update takes one bucket of memory, whatever the model's size: it
is filled, loaded by the worker, and filled again. On a CPU the bucket is anonymous shared memory that has no name and
no file, so that nothing of it outlives the two processes; on a GPU there is none: the worker reads the trainer's own
tensors by CUDA IPC.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

BUCKET_BYTES = 64 << 20
ALIGN = 64


class SharedBucket:
    """Memory of this process that a child of the same user can map."""

    def __init__(self) -> None:
        self._file = os.memfd_create("ajet-weights", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self.size = 0

    def buckets(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
        """Descriptions of filled buckets; each is valid until the next is asked for."""
        waiting: list[tuple[str, str, list[int], int]] = []
        end = 0
        for name, tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            if waiting and end + size > max(self.size, BUCKET_BYTES):
                yield self._describe_bucket(waiting)
                waiting, end = [], 0
            self._reserve_bytes(end + size)
            self._write_tensor(tensor, end)
            waiting.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
            end = -(-(end + size) // ALIGN) * ALIGN
        if waiting:
            yield self._describe_bucket(waiting)

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        if self._file >= 0:
            if self._memory is not None:
                self._memory.close()
            os.close(self._file)
            self._file, self.size = -1, 0

    def _describe_bucket(self, tensors: list[tuple[str, str, list[int], int]]) -> dict[str, Any]:
        return {"path": f"/proc/{os.getpid()}/fd/{self._file}", "size": self.size, "tensors": tensors}

    def _reserve_bytes(self, size: int) -> None:
        if size <= self.size:
            return
        if self._memory is not None:
            self._memory.close()
        self.size = -(-max(size, min(2 * self.size, BUCKET_BYTES)) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._file, self.size)
        self._memory = mmap.mmap(self._file, self.size)

    def _write_tensor(self, tensor: Tensor, start: int) -> None:
        assert self._memory is not None
        into = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=start)
        into.copy_(tensor.detach().reshape(-1))


def device_buckets(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
    """Buckets of tensors on a GPU: CUDA IPC handles. The tensors of a bucket are kept until the next is asked for."""
    from torch.multiprocessing.reductions import reduce_tensor

    tensors_held: list[Tensor] = []
    waiting: list[Any] = []
    size = 0
    for name, tensor in tensors:
        tensor = tensor.detach()
        tensors_held.append(tensor)
        waiting.append((name, *reduce_tensor(tensor)))
        size += tensor.numel() * tensor.element_size()
        if size >= BUCKET_BYTES:
            torch.cuda.synchronize()
            yield {"handles": pickle.dumps(waiting)}
            tensors_held, waiting, size = [], [], 0
    if waiting:
        torch.cuda.synchronize()
        yield {"handles": pickle.dumps(waiting)}
