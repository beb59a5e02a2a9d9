"""Splits the tokens of a packed row over a group of ranks, as in DeepSpeed's Ulysses.

Each rank has an equal part of the row's tokens with all heads. Around attention, verl's all-to-all exchanges this for
all tokens with an equal part of the heads, so `tree_attention` sees complete trees. Invariant: the ranks together
compute the result of one rank. Every rank of the group computes the loss of all targets: `sum_over_ranks` multiplies
each rank's gradients by the number of ranks, and FSDP averages them.

Registered with transformers as the attention implementation `ajet_tree_ulysses`; the plan is passed as in
`tree_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from verl.utils.ulysses import gather_heads_scatter_seq, gather_seq_scatter_heads

from ajet.backbone.local.tree_attention import TreePlan, tree_attention
from ajet.context_tracker.packing import Indices, PackedRow, Tree

NAME = "ajet_tree_ulysses"


class SplitPlan(TreePlan):
    """Attention plan of a complete packed row whose tokens are split equally over the ranks of `group`."""

    def __init__(self, trees: Sequence[Tree], positions: Tensor, group: ProcessGroup) -> None:
        super().__init__(trees, positions)
        self.group = group


class RowPart:
    """The part of a packed row that one rank computes.

    Parts have equal sizes, and the row is padded at the end.

    Args:
        rank: number of this part's rank in its group.
        ranks: size of the group.
    """

    def __init__(self, row: PackedRow, rank: int, ranks: int) -> None:
        """Pad the row to a multiple of `ranks` tokens, and select the tokens and targets of this part."""
        count = row.ids.size
        padding = -count % ranks
        size = (count + padding) // ranks
        slice_of_rank = slice(rank * size, (rank + 1) * size)
        target_bounds = np.searchsorted(row.targets.source, [slice_of_rank.start, slice_of_rank.stop])
        self.trees = [*row.trees]
        """Trees of the complete row; padding is a separate tree."""
        if padding:
            self.trees.append(Tree(count, count + padding, np.zeros(padding, np.int64), np.array([-1])))
        self.positions = np.concatenate([row.positions, np.arange(padding)]).astype(np.int64)
        """Positions of the complete row."""
        self.ids = np.concatenate([row.ids, np.zeros(padding)]).astype(np.int64)[slice_of_rank]
        """Token ids of this part."""
        self.at = slice_of_rank
        """Slice of this part in the row."""
        self.targets = slice(*target_bounds.tolist())
        """Slice of the row's targets (tokens to score) that this part's tokens predict."""
        self.tokens = row.targets.token[self.targets].astype(np.int64)
        """Token ids of these targets."""
        self.source: Indices = row.targets.source[self.targets] - slice_of_rank.start
        """For each target, the index of the predicting token within this part."""


def register_attention() -> None:
    """Register the split tree attention with transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, split_tree_attention)


def split_tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    trees: SplitPlan | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Apply `tree_attention` to a row whose tokens are split over ranks.

    Args:
        query: [1, H, n, d] for H heads and this rank's own n tokens; `key` and `value` may have fewer heads.
        trees: plan of the complete row, or None for plain attention.
        s_aux: attention sinks of all heads, or None.

    Returns:
        The attention output of the rank's own tokens for all heads, and None for the attention weights.
    """
    if trees is None:
        return tree_attention(module, query, key, value, attention_mask, **keywords)
    group = trees.group
    ranks = dist.get_world_size(group)
    # With fewer key heads than ranks, each rank must get a head after the exchange: repeat them.
    if (copies := ranks // key.shape[1]) > 1:
        key, value = key.repeat_interleave(copies, 1), value.repeat_interleave(copies, 1)
    # [1, heads, own tokens, d] becomes [1, own heads, tokens, d]; dimension 2 is gathered, dimension 1 is split.
    q, k, v = (gather_seq_scatter_heads(states, 2, 1, group=group) for states in (query, key, value))
    sinks = None if s_aux is None else s_aux.chunk(ranks)[dist.get_rank(group)]
    output, _ = tree_attention(module, q, k, v, attention_mask, trees=trees, s_aux=sinks, **keywords)
    return gather_heads_scatter_seq(output, 2, 1, group=group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        """Return the sum of a tensor over the group's ranks."""
        ctx.ranks = dist.get_world_size(group)
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        """Return the gradient times the number of ranks, because FSDP averages it over them afterwards."""
        return grads[0] * ctx.ranks, None


def sum_over_ranks(values: Tensor, group: ProcessGroup) -> Tensor:
    """Return `values` summed over the ranks of `group`. Each rank computes the same loss from the sum."""
    result: Tensor = _Sum.apply(values, group)
    return result
