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
"""Size in bytes from which a bucket counts as full. A larger tensor makes a larger bucket."""
ALIGN = 64
"""Offsets of tensors in a bucket are multiples of this number of bytes."""


class SharedBucket:
    """Memory of this process that child processes of the same user can map."""

    def __init__(self) -> None:
        """Create the shared memory, empty. It has no name in the file system, so a kill leaves nothing behind."""
        self._file = os.memfd_create("ajet-weights", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self.size = 0
        """Size of the memory in bytes."""

    def buckets(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
        """Copy tensors into the memory, and yield a description each time that it is full.

        The next bucket overwrites the memory, so the worker must have loaded a bucket before the next is requested.

        Args:
            tensors: (name, tensor) of each tensor.

        Yields:
            `path` and `size` in bytes of the memory, and for each of the `tensors` its name, dtype, shape and offset.
        """
        entries: list[tuple[str, str, list[int], int]] = []
        offset = 0
        for name, tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            if entries and offset + size > max(self.size, BUCKET_BYTES):
                yield self._describe_bucket(entries)
                entries, offset = [], 0
            self._reserve_bytes(offset + size)
            self._write_tensor(tensor, offset)
            entries.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset))
            offset = -(-(offset + size) // ALIGN) * ALIGN  # rounded up
        if entries:
            yield self._describe_bucket(entries)

    def close(self) -> None:
        """Free the memory and its descriptor. Idempotent."""
        if self._file >= 0:
            if self._memory is not None:
                self._memory.close()
            os.close(self._file)
            self._file, self.size = -1, 0

    def _describe_bucket(self, tensors: list[tuple[str, str, list[int], int]]) -> dict[str, Any]:
        """Return the message by which a child process finds the tensors in this process's memory.

        Args:
            tensors: name, dtype, shape and offset in bytes of each tensor.
        """
        return {"path": f"/proc/{os.getpid()}/fd/{self._file}", "size": self.size, "tensors": tensors}

    def _reserve_bytes(self, size: int) -> None:
        """Grow the memory to at least `size` bytes, in complete pages. It never shrinks.

        Small sizes are doubled up to 64 MiB, so that it grows only a few times.
        """
        if size <= self.size:
            return
        if self._memory is not None:
            self._memory.close()
        self.size = -(-max(size, min(2 * self.size, BUCKET_BYTES)) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._file, self.size)
        self._memory = mmap.mmap(self._file, self.size)

    def _write_tensor(self, tensor: Tensor, offset: int) -> None:
        """Copy a tensor into the memory, from `offset` in bytes on."""
        assert self._memory is not None
        target = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        target.copy_(tensor.detach().reshape(-1))


def device_buckets(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
    """Yield CUDA IPC handles of GPU tensors, by which another process on the GPU reads them without a copy.

    Each yielded dict has about 64 MiB of tensors, as `handles`: a pickled list of (name, function, arguments). They
    stay alive until the next dict is requested.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    tensors_held: list[Tensor] = []
    handles: list[Any] = []
    size = 0
    for name, tensor in tensors:
        tensor = tensor.detach()
        tensors_held.append(tensor)
        handles.append((name, *reduce_tensor(tensor)))
        size += tensor.numel() * tensor.element_size()
        if size >= BUCKET_BYTES:
            torch.cuda.synchronize()  # the other process must not read unfinished values
            yield {"handles": pickle.dumps(handles)}
            tensors_held, handles, size = [], [], 0
    if handles:
        torch.cuda.synchronize()
        yield {"handles": pickle.dumps(handles)}
