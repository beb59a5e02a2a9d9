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
"""Maps logits [C, V] and their target tokens [C] to R results per target, [C, R]. C is a chunk's number of targets."""


@contextmanager
def read_in_chunks(head: torch.nn.Module, targets: Tensor, rows: int, read: Read) -> Iterator[None]:
    """Make the head return the results of `read` instead of logits while the block runs.

    The head then maps hidden states [1, K, H] to [1, K, R], and computes the logits of `rows` targets at a time.

    Args:
        head: the model's output head.
        targets: token ids to score, [K].
        rows: number of targets per chunk.
        read: computes the results from logits and targets.
    """
    compute_logits, replaced_forward, draws_random_numbers = (
        head.forward,
        vars(head).get("forward"),
        _draws_random_numbers(head),
    )

    def read_chunk(states: Tensor, tokens: Tensor) -> Tensor:
        """Return the results of `read` for the hidden states and target tokens of one chunk."""
        return read(compute_logits(states), tokens)

    def forward_in_chunks(states: Tensor) -> Tensor:
        """Replace the head's forward pass: return the results [1, K, R] for hidden states [1, K, H]."""
        # With gradients, checkpointing drops each chunk's logits and recomputes them in the backward pass.
        compute: Any = checkpoint if torch.is_grad_enabled() else lambda function, *arguments, **_: function(*arguments)
        chunks = zip(states[0].split(rows), targets.split(rows), strict=True)
        chunk_results = [
            compute(read_chunk, *chunk, use_reentrant=False, preserve_rng_state=draws_random_numbers)[None]
            for chunk in chunks
        ]
        return torch.cat(chunk_results, 1)

    head.forward = forward_in_chunks
    try:
        yield
    finally:
        if replaced_forward is None:
            del head.forward
        else:  # restore a replacement made earlier
            head.forward = replaced_forward


def _draws_random_numbers(head: torch.nn.Module) -> bool:
    """Return True if the head draws random numbers, such as for dropout, which a recomputation must repeat."""
    return any(isinstance(module, torch.nn.Dropout) and module.p > 0 and module.training for module in head.modules())


def is_gathered_alone(head: torch.nn.Module | None) -> bool:
    """Return True if the head, or a module in it, is an FSDP unit of its own, which gathers weights at each pass.

    Such a head cannot be computed in chunks: ranks with different numbers of chunks would wait forever. FSDP1 makes a
    unit of each LoRA matrix, so a head with LoRA counts too.
    """
    units = (FullyShardedDataParallel, FSDPModule)
    return head is not None and any(isinstance(module, units) for module in head.modules())


class HeadOutput:
    """Records the last output of a model's head, which stays None if the model names no head."""

    def __init__(self, head: torch.nn.Module | None) -> None:
        self.found: Tensor | None = None
        self._hook_handle = None if head is None else head.register_forward_hook(self._store_output)

    def _store_output(self, head: torch.nn.Module, given: Any, output: Tensor) -> None:
        """Forward hook of the head: store its output."""
        self.found = output

    def close(self) -> None:
        """Stop recording."""
        if self._hook_handle is not None:
            self._hook_handle.remove()

    def is_all(self, logits: Tensor) -> bool:
        """Return True if a model's logits are its head's output, unchanged by soft caps or scaling."""
        return self.found is not None and self.found.shape == logits.shape and torch.equal(self.found, logits)
