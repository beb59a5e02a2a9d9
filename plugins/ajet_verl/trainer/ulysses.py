"""A packed row whose tokens are split over a group of ranks, the way of DeepSpeed's Ulysses.

Each rank has an equal part of the row's tokens with all heads; around attention verl's all-to-all turns that into all
tokens with an equal part of the heads, so that `tree_attention` sees whole trees. Invariant: what ranks find together
is what one rank finds. The loss is on every rank of the group, of all targets: `summed` hands each rank's gradients as
many times as there are ranks, and FSDP takes their mean.

Registered with transformers as the attention implementation `ajet_tree_ulysses`; the plan travels as in
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
    """A plan of all tokens of a row, each rank of `group` having an equal part of them."""

    def __init__(self, trees: Sequence[Tree], positions: Tensor, group: ProcessGroup) -> None:
        super().__init__(trees, positions)
        self.group = group


class RowPart:
    """What one of `ranks` computes of a row: an equal number of tokens each, the last ones padding."""

    def __init__(self, row: PackedRow, rank: int, ranks: int) -> None:
        count = row.ids.size
        padding = -count % ranks
        size = (count + padding) // ranks
        at = slice(rank * size, (rank + 1) * size)
        own = np.searchsorted(row.targets.source, [at.start, at.stop])
        self.trees = [*row.trees]
        """Of the whole row; the padding is a tree of its own."""
        if padding:
            self.trees.append(Tree(count, count + padding, np.zeros(padding, np.int64), np.array([-1])))
        self.positions = np.concatenate([row.positions, np.arange(padding)]).astype(np.int64)
        """Of the whole row."""
        self.ids = np.concatenate([row.ids, np.zeros(padding)]).astype(np.int64)[at]
        """Its own tokens."""
        self.at = at
        """Where they lie in the row."""
        self.targets = slice(*own.tolist())
        """Those of the row's targets that its tokens predict."""
        self.tokens = row.targets.token[self.targets].astype(np.int64)
        """What they predict."""
        self.source: Indices = row.targets.source[self.targets] - at.start
        """Index into its own tokens of the one that predicts each of them."""


def register_attention() -> None:
    """Make the implementation known to transformers. Idempotent."""
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
    """`tree_attention` of queries, keys and values [1, H, n, d] of a rank's own n tokens."""
    if trees is None:
        return tree_attention(module, query, key, value, attention_mask, **keywords)
    group = trees.group
    ranks = dist.get_world_size(group)
    if (copies := ranks // key.shape[1]) > 1:
        key, value = key.repeat_interleave(copies, 1), value.repeat_interleave(copies, 1)
    q, k, v = (gather_seq_scatter_heads(each, 2, 1, group=group) for each in (query, key, value))
    sinks = None if s_aux is None else s_aux.chunk(ranks)[dist.get_rank(group)]
    found, _ = tree_attention(module, q, k, v, attention_mask, trees=trees, s_aux=sinks, **keywords)
    return gather_heads_scatter_seq(found, 2, 1, group=group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        ctx.ranks = dist.get_world_size(group)
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0] * ctx.ranks, None


def sum_over_ranks(values: Tensor, group: ProcessGroup) -> Tensor:
    """`values` added up over the ranks of `group`, each of which makes the same loss of them."""
    result: Tensor = _Sum.apply(values, group)
    return result
