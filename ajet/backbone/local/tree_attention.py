"""Attention over packed trees: each token sees its own tree's path to the root and nothing else.

Invariant: equal to attention over each sample alone, to float tolerance, in memory that is linear in the row and in
its longest path. Linear layers run over all tokens of a row at once; attention runs tree by tree, so that its cost has
no term across trees. A small tree is one call under a dense mask; one beyond `DENSE` tokens goes by the keys of each
segment (`subtree_attention`) on a CPU. Elsewhere, or with a sliding window, it goes segment by segment against the keys
of its ancestors, in blocks of queries; beyond `KEPT` keys the backward pass computes a block again, so that neither its
mask nor its copy of the path's keys is kept. Masks of small trees and of sliding windows are made once for all layers,
and for all blocks that are alike. Soft-capped scores (Gemma 2) and sinks (gpt-oss), which torch's fused attention does
not know, are written out, in blocks of queries that the backward pass computes again; any other keyword of a model's
attention raises.

Registered with transformers as the attention implementation `ajet_tree`; a plan travels to it as the keyword
argument `trees` of the model's forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ajet.context_tracker.packing import Tree, tree_mask
from ajet.engine.same_model import refuse_unknown_keywords

NAME = "ajet_tree"
DENSE = 640
"""Largest tree that branches, or outgrows its layer's window, and is one call under a dense mask."""
QUERY_BLOCK = 1024
KEPT = 4096
"""Keys of the longest path up to which a block's mask and keys are kept for the backward pass."""
WRITTEN_BLOCK = 256
"""Queries whose scores exist at a time where they are written out."""


@dataclass(frozen=True, slots=True)
class _AttentionTerms:
    """A layer's own terms of attention."""

    scaling: float | None
    softcap: float | None
    sinks: Tensor | None
    """[H] a score per head that takes part in the softmax and brings no value."""

    @property
    def fused(self) -> bool:
        """Whether torch's fused attention computes it."""
        return self.softcap is None and self.sinks is None


class TreePlan:
    """Where the trees of one row lie, and the masks of each, made once and used by every layer. (No dataclass: FSDP
    would take it apart and hand each layer a copy.)"""

    def __init__(self, trees: Sequence[Tree], positions: Tensor) -> None:
        """positions: [N] of each token within its sample."""
        self.trees, self.positions = trees, positions
        self.masks: dict[tuple[int | None, ...], Tensor] = {}
        self._scores: dict[tuple[int, torch.dtype], Tensor] = {}
        self.windows: dict[int, int | None] = {}
        """The sliding window that each layer asked for."""

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

    def band(self, queries: int, keys: int, before: int, window: int) -> Tensor:
        """[queries, keys] of a block that sees `before` keys ahead of its own, of them the nearest `window`: one for
        all blocks that are alike, of which a long path has many."""
        known = self.masks.get((queries, keys, before, window))
        if known is None:
            known = _make_causal_mask(queries, keys, before, self.positions.device).triu_(before - window + 1)
            self.masks[queries, keys, before, window] = known
        return known

    def shared(self, mask: Tensor, q: Tensor, how: _AttentionTerms) -> Tensor:
        """A kept mask as what it adds to the scores, once for all layers: torch's fused attention on the CPU makes the
        same of it in each call, and keeps that for the backward pass."""
        if not how.fused or q.device.type != "cpu":
            return mask
        known = self._scores.get((id(mask), q.dtype))
        if known is None:
            known = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
            self._scores[id(mask), q.dtype] = known
        return known


def _make_causal_mask(queries: int, keys: int, before: int, device: torch.device) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(before)


def register_attention() -> None:
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
    trees: TreePlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query [1, H, N, d], key and value [1, H_kv, N, d] to [1, N, H, d]. `softcap`
    and `s_aux` (sinks) are what Gemma 2 and gpt-oss ask for. Raises TypeError for what is not computed here."""
    refuse_unknown_keywords(NAME, keywords)
    if trees is None:
        raise TypeError("its layers do not hand keywords on to their attention")
    how = _AttentionTerms(scaling, softcap, s_aux)
    trees.windows[int(getattr(module, "layer_idx", 0))] = sliding_window
    sizes = trees.sizes
    parts = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    outputs = []
    for index, (q, k, v) in enumerate(parts):
        tree = trees.trees[index]
        reach = _bound_reach(tree) if sliding_window is not None else 0
        window = sliding_window if sliding_window is not None and reach > sliding_window else None
        if tree.parents.size == 1 and window is None:
            outputs.append(_attend_dense(q, k, v, None, how))
        elif q.shape[2] <= DENSE:
            outputs.append(_attend_dense(q, k, v, trees.shared(trees.dense_mask(index, window), q, how), how))
        elif uses_subtrees(q, how, window):
            outputs.append(subtree_attention(tree, q, k, v, how.scaling))
        else:
            outputs.extend(_attend_by_segment(trees, tree, q, k, v, how, window))
    return torch.cat([part.transpose(1, 2) for part in outputs], 1), None


def uses_subtrees(q: Tensor, how: _AttentionTerms, window: int | None) -> bool:
    """Whether the kernel that computes these hands out the sums that `subtree_attention` puts parts together by."""
    return window is None and how.fused and q.device.type == "cpu"


def _bound_reach(tree: Tree) -> int:
    """An upper bound of the tree's longest path, in tokens."""
    lengths = np.bincount(tree.segment_of, minlength=tree.parents.size)
    ends = np.zeros(tree.parents.size, np.int64)
    for segment, parent in enumerate(tree.parents):
        ends[segment] = lengths[segment] + (ends[parent] if parent >= 0 else 0)
    return int(ends.max())


def _attend_by_segment(
    trees: TreePlan, tree: Tree, q: Tensor, k: Tensor, v: Tensor, how: _AttentionTerms, window: int | None
) -> list[Tensor]:
    """Segment by segment: queries of a segment against the keys of its ancestors and its own up to each query."""
    lengths = np.bincount(tree.segment_of, minlength=tree.parents.size).tolist()
    queries, keys, values = q.split(lengths, 2), k.split(lengths, 2), v.split(lengths, 2)
    outputs = []
    for segment, parent in enumerate(tree.parents.tolist()):
        if parent < 0 and window is None:
            outputs.append(_attend_dense(queries[segment], keys[segment], values[segment], None, how))
            continue
        path = [segment]
        while (parent := int(tree.parents[path[-1]])) >= 0:
            path.append(parent)
        path.reverse()
        end = sum(lengths[index] for index in path)
        first = end - lengths[segment]
        for block in queries[segment].split(QUERY_BLOCK, 2):
            stop = first + block.shape[2]
            low = 0 if window is None else max(0, first - window + 1)
            pieces = [
                (keys[index][:, :, a:b], values[index][:, :, a:b])
                for index, a, b in _slice_path(path, lengths, low, stop)
            ]
            seen: Tensor | int = first - low
            if window is not None:
                seen = trees.shared(trees.band(block.shape[2], stop - low, first - low, window), q, how)
            if stop - low > KEPT and torch.is_grad_enabled():
                outputs.append(
                    checkpoint(_attend_path, block, pieces, seen, how, use_reentrant=False, preserve_rng_state=False)
                )
            else:
                outputs.append(_attend_path(block, pieces, seen, how))
            first = stop
    return outputs


def _slice_path(path: Sequence[int], lengths: Sequence[int], low: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The positions [low, stop) of a path as (segment, start, stop) within each of its segments."""
    at = 0
    for segment in path:
        a, b = max(low - at, 0), min(stop - at, lengths[segment])
        if a < b:
            yield segment, a, b
        at += lengths[segment]


def _attend_path(
    q: Tensor, pieces: Sequence[tuple[Tensor, Tensor]], seen: Tensor | int, how: _AttentionTerms
) -> Tensor:
    """Queries [.., R, d] against a path's keys and values. `seen`: a mask, or how many keys are ahead of the first
    query's own."""
    keys, values = (torch.cat(part, 2) for part in zip(*pieces, strict=True))
    mask = _make_causal_mask(q.shape[2], keys.shape[2], seen, q.device) if isinstance(seen, int) else seen
    return _attend_dense(q, keys, values, mask, how)


def _attend_dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: _AttentionTerms) -> Tensor:
    """Scaled dot-product attention, causal without a mask; fewer key heads than query heads are shared."""
    groups = q.shape[1] // k.shape[1]
    native = how.fused and groups > 1 and (mask is None or q.device.type == "cpu")
    if groups > 1 and not native:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if how.fused:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=how.scaling, enable_gqa=native
        )
    parts = []
    for start in range(0, q.shape[2], WRITTEN_BLOCK):
        block = q[:, :, start : start + WRITTEN_BLOCK]
        # without a mask there are as many keys as queries: those after the block's last are seen by none of it
        seen = start + block.shape[2] if mask is None else mask.shape[1]
        which = start if mask is None else mask[start : start + WRITTEN_BLOCK]
        given = (block, k[:, :, :seen], v[:, :, :seen], which, how)
        if torch.is_grad_enabled():
            parts.append(checkpoint(_attend_written_out, *given, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_attend_written_out(*given))
    return torch.cat(parts, 2)


def _attend_written_out(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | int, how: _AttentionTerms) -> Tensor:
    """Attention as two products, after transformers' eager attention. `seen`: a mask, or how many keys are ahead of the
    first query's own; a mask made here is not kept for the backward pass."""
    if isinstance(seen, int):
        seen = _make_causal_mask(q.shape[2], k.shape[2], seen, q.device)
    scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if how.scaling is None else how.scaling)
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores.masked_fill(~seen, float("-inf"))
    if how.sinks is not None:
        sinks = how.sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    if how.sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights, v)


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def subtree_attention(tree: Tree, q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> Tensor:
    """Queries [1, H, n, d], keys and values [1, H_kv, n, d] of the tree's n tokens, all on a CPU, to [1, H, n, d].

    A tree lies in preorder, so that what continues a segment follows it without a gap. Those tokens see all of its
    keys, in one call without a mask; its own tokens see them causally. A query's parts are put together by the
    logarithms of their sums. Only queries, keys, values, outputs and a number for each query and head are stored for
    the backward pass, so that memory is linear in the tree, and no pair of tokens is computed twice.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    result: Tensor = _Subtrees.apply(q, k, v, tree, scaling)
    return result


def list_pieces(tree: Tree) -> Iterator[tuple[slice, slice, bool]]:
    """The queries and the keys of each call, and whether it is causal. Every query has its own segment's first."""
    starts = np.flatnonzero(np.diff(tree.segment_of, prepend=-1))
    stops = np.append(starts[1:], tree.segment_of.size)
    ends = stops.copy()
    for segment in range(ends.size - 1, -1, -1):
        if (parent := tree.parents[segment]) >= 0:
            ends[parent] = max(ends[parent], ends[segment])
    bounds = list(zip(starts.tolist(), stops.tolist(), ends.tolist(), strict=True))
    yield from ((slice(start, stop), slice(start, stop), True) for start, stop, _ in bounds)
    yield from ((slice(stop, end), slice(start, stop), False) for start, stop, end in bounds if end > stop)


class _Subtrees(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tree: Tree, scaling: float | None) -> Tensor:
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3], dtype=exact).transpose(1, 2)
        sums = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=exact).transpose(1, 2)
        heads = q.shape[1] // k.shape[1]
        for at, seen, causal in list_pieces(tree):
            part, more = _forward(
                q[:, :, at], _repeat_heads(k, seen, heads), _repeat_heads(v, seen, heads), 0.0, causal, scale=scaling
            )
            into, total = out[:, :, at], sums[:, :, at]
            if causal:
                into.copy_(part)
                total.copy_(more)
                continue
            both = torch.logaddexp(total, more)
            into.mul_((total - both).exp_()[..., None]).addcmul_(part.to(exact), (more - both).exp_()[..., None])
            total.copy_(both)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.tree, ctx.scaling = tree, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        heads = q.shape[1] // k.shape[1]
        found = [torch.zeros_like(each, dtype=sums.dtype) for each in (q, k, v)]
        for at, seen, causal in list_pieces(ctx.tree):
            parts = _backward(
                grads[0][:, :, at], q[:, :, at], _repeat_heads(k, seen, heads), _repeat_heads(v, seen, heads),
                out[:, :, at], sums[:, :, at], 0.0, causal, scale=ctx.scaling,
            )  # fmt: skip
            found[0][:, :, at] += parts[0]
            for into, part in zip(found[1:], parts[1:], strict=True):
                into[:, :, seen] += part if heads == 1 else part.unflatten(1, (-1, heads)).sum(2, dtype=sums.dtype)
        return *(each.to(given.dtype) for each, given in zip(found, (q, k, v), strict=True)), None, None


def _repeat_heads(given: Tensor, seen: slice, heads: int) -> Tensor:
    """The keys or values of a segment, once for each of the `heads` that share them."""
    part = given[:, :, seen]
    return part if heads == 1 else part.repeat_interleave(heads, 1)
