"""Attention over packed trees: each token sees its own tree's path to the root and nothing else.

Invariant: equal to attention over each sample alone, to float tolerance. Linear layers run over all tokens of a row
at once; attention runs tree by tree, so that its cost has no term across trees. A small tree is one call under a
dense mask; a tree beyond `DENSE` tokens goes segment by segment against the keys of its ancestors, in blocks of
queries, so that neither work nor masks grow with the product of its branches.

Registered with transformers as the attention implementation `ajet_tree`; a plan travels to it as the keyword
argument `trees` of the model's forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ajet.context_tracker.packing import Tree, tree_mask

NAME = "ajet_tree"
DENSE = 640
"""Largest branching tree that is one call under a dense mask."""
QUERY_BLOCK = 1024


@dataclass(slots=True)
class TreePlan:
    """Where the trees of one row lie, and the masks of each, made once and used by every layer."""

    trees: Sequence[Tree]
    positions: Tensor
    """[N] position of each token within its sample."""
    masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Tokens of each tree, in order."""
        return [tree.stop - tree.start for tree in self.trees]

    def dense_mask(self, index: int, window: int | None) -> Tensor:
        """[n, n] of tree `index`; with a sliding `window`, only the nearest `window` positions of the path."""
        known = self.masks.get((index, window))
        if known is None:
            tree = self.trees[index]
            known = torch.from_numpy(tree_mask(tree)).to(self.positions.device)
            if window is not None:
                at = self.positions[tree.start : tree.stop]
                known &= (at[:, None] - at[None, :]) < window
            self.masks[index, window] = known
        return known


def register() -> None:
    """Make the implementation known to transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    trees: TreePlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query [1, H, N, d], key and value [1, H_kv, N, d] to [1, N, H, d]."""
    sizes = trees.sizes
    parts = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    outputs = []
    for index, (q, k, v) in enumerate(parts):
        tree = trees.trees[index]
        reach = _reach(tree) if sliding_window is not None else 0
        window = sliding_window if sliding_window is not None and reach > sliding_window else None
        if tree.parents.size == 1 and window is None:
            outputs.append(_attend(q, k, v, None, scaling))
        elif q.shape[2] <= DENSE or window is not None:
            outputs.append(_attend(q, k, v, trees.dense_mask(index, window), scaling))
        else:
            outputs.extend(_by_segment(tree, q, k, v, scaling))
    return torch.cat([part.transpose(1, 2) for part in outputs], 1), None


def _reach(tree: Tree) -> int:
    """An upper bound of the tree's longest path, in tokens."""
    lengths = np.bincount(tree.segment_of, minlength=tree.parents.size)
    ends = np.zeros(tree.parents.size, np.int64)
    for segment, parent in enumerate(tree.parents):
        ends[segment] = lengths[segment] + (ends[parent] if parent >= 0 else 0)
    return int(ends.max())


def _by_segment(tree: Tree, q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> list[Tensor]:
    """Segment by segment: queries of a segment against the keys of its ancestors and its own up to each query."""
    lengths = np.bincount(tree.segment_of, minlength=tree.parents.size).tolist()
    queries, keys, values = q.split(lengths, 2), k.split(lengths, 2), v.split(lengths, 2)
    outputs = []
    for segment, parent in enumerate(tree.parents.tolist()):
        if parent < 0 and lengths[segment] <= QUERY_BLOCK:
            outputs.append(_attend(queries[segment], keys[segment], values[segment], None, scaling))
            continue
        path = [segment]
        while (parent := int(tree.parents[path[-1]])) >= 0:
            path.append(parent)
        own = lengths[segment]
        path_keys = torch.cat([keys[index] for index in path[::-1]], 2)
        path_values = torch.cat([values[index] for index in path[::-1]], 2)
        before = path_keys.shape[2] - own
        for start in range(0, own, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, own)
            seen = before + stop
            mask = torch.ones(stop - start, seen, dtype=torch.bool, device=q.device).tril(before + start)
            block = queries[segment][:, :, start:stop]
            outputs.append(_attend(block, path_keys[:, :, :seen], path_values[:, :, :seen], mask, scaling))
    return outputs


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Scaled dot-product attention, causal without a mask; fewer key heads than query heads are shared."""
    groups = q.shape[1] // k.shape[1]
    native = groups > 1 and (mask is None or q.device.type == "cpu")
    if groups > 1 and not native:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=native
    )
