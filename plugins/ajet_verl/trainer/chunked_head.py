"""Computes log-probabilities inside the model's head, chunk by chunk.

FSDP needs one forward pass of the complete module with its head, so the logits of all trained tokens would exist at
once: 39 GB for 64,000 tokens and a vocabulary of 150,000. Invariants: only one chunk's logits exist at a time, and the
backward pass recomputes each chunk. The results equal those of the full logits, row by row. Limited to models with the
head's output as logits and a head gathered with the rest of the model; `TreeEngine.initialize` checks both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

Read = Callable[[Tensor, Tensor], Tensor]
"""Maps logits [C, V] and their targets [C] to results [C, R]."""


@contextmanager
def read_in_chunks(head: torch.nn.Module, targets: Tensor, rows: int, read: Read) -> Iterator[None]:
    """Within the block, the head maps hidden states [1, K, H] to results of `read`, [1, K, R], `rows` at a time.

    Args:
        targets: token ids, [K].
    """
    logits, own, draws = head.forward, vars(head).get("forward"), _draws_random_numbers(head)

    def of(states: Tensor, tokens: Tensor) -> Tensor:
        return read(logits(states), tokens)

    def forward(states: Tensor) -> Tensor:
        compute: Any = checkpoint if torch.is_grad_enabled() else lambda function, *given, **_: function(*given)
        parts = zip(states[0].split(rows), targets.split(rows), strict=True)
        read_of = [compute(of, *part, use_reentrant=False, preserve_rng_state=draws)[None] for part in parts]
        return torch.cat(read_of, 1)

    head.forward = forward
    try:
        yield
    finally:
        if own is None:
            del head.forward
        else:  # restore a replacement made earlier
            head.forward = own


def _draws_random_numbers(head: torch.nn.Module) -> bool:
    """Return True for a head with random numbers, such as dropout in an adapter: recomputation must repeat them."""
    return any(isinstance(each, torch.nn.Dropout) and each.p > 0 and each.training for each in head.modules())


def is_gathered_alone(head: torch.nn.Module | None) -> bool:
    """Return True if the ranks gather weights of the head at each pass, as a separate FSDP unit.

    FSDP1 makes a unit of each matrix of an adapter. Ranks with different numbers of chunks would wait forever.
    """
    units = (FullyShardedDataParallel, FSDPModule)
    return head is not None and any(isinstance(each, units) for each in head.modules())


class HeadOutput:
    """Records the last output of a head; None if the model names no head."""

    def __init__(self, head: torch.nn.Module | None) -> None:
        self.found: Tensor | None = None
        self._hook = None if head is None else head.register_forward_hook(self._store_output)

    def _store_output(self, head: torch.nn.Module, given: Any, output: Tensor) -> None:
        self.found = output

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def is_all(self, logits: Tensor) -> bool:
        """Return True if the logits are the head's output, unchanged."""
        return self.found is not None and self.found.shape == logits.shape and torch.equal(self.found, logits)
