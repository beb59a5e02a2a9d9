"""What a pass reads off its logits, read in the model's head, chunk by chunk.

FSDP needs the forward pass of the module as a whole, its head included, so that the logits of all trained tokens would
exist at once: 39 GB for 64,000 tokens and a vocabulary of 150,000. Invariant: no more than a chunk's logits exist at a
time, and the backward pass computes each chunk again; what is read is what the whole would give, row by row. Only for a
model whose logits are its head's output as it is, and whose head is gathered with the rest of the model;
`TreeEngine.initialize` looks.
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
"""Logits [C, V] and their targets [C] to what is read of each target, [C, R]."""


@contextmanager
def read_in_chunks(head: torch.nn.Module, targets: Tensor, rows: int, read: Read) -> Iterator[None]:
    """Within the block the head gives, for hidden states [1, K, H], what `read` makes of its logits, [1, K, R], `rows`
    at a time. targets: [K]."""
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
        else:  # somebody else's, put there before
            head.forward = own


def _draws_random_numbers(head: torch.nn.Module) -> bool:
    """Whether it draws random numbers, as an adapter with dropout does: computed again they must be the same."""
    return any(isinstance(each, torch.nn.Dropout) and each.p > 0 and each.training for each in head.modules())


def is_gathered_alone(head: torch.nn.Module | None) -> bool:
    """Whether the ranks gather weights of the head at each of its passes (a unit of FSDP's own; FSDP1 makes one of each
    matrix of an adapter). Ranks with different numbers of chunks would wait for each other for ever."""
    units = (FullyShardedDataParallel, FSDPModule)
    return head is not None and any(isinstance(each, units) for each in head.modules())


class HeadOutput:
    """The last output of a head, while it is looked at; of a model that names none (None) there is none."""

    def __init__(self, head: torch.nn.Module | None) -> None:
        self.found: Tensor | None = None
        self._hook = None if head is None else head.register_forward_hook(self._store_output)

    def _store_output(self, head: torch.nn.Module, given: Any, output: Tensor) -> None:
        self.found = output

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def is_all(self, logits: Tensor) -> bool:
        """Whether nothing was done to it to make these."""
        return self.found is not None and self.found.shape == logits.shape and torch.equal(self.found, logits)
