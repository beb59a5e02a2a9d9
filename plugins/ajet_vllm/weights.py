"""Sends weight updates from the trainer to vLLM's worker; this module is the trainer's side.

Invariant: an update needs one bucket of memory in addition to vLLM's copy, for every model size: the bucket is filled,
loaded by the worker, and refilled. On a CPU the bucket is anonymous shared memory without a file, so nothing outlives
the two processes. On a GPU the worker reads the trainer's tensors by CUDA IPC, without a bucket.
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
    """Memory of this process that child processes of the same user can map."""

    def __init__(self) -> None:
        self._file = os.memfd_create("ajet-weights", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self.size = 0

    def buckets(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
        """Yield descriptions of filled buckets; each is valid until the next is requested."""
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
        """Free the memory and its descriptor. Idempotent."""
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
    """Yield CUDA IPC handles of GPU tensors in buckets; a bucket's tensors stay alive until the next is requested."""
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
