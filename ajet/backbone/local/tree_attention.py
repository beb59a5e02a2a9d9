"""Attention over packed trees: each token sees only its own tree's path to the root.

Invariant: equal to attention over each sample alone, to float tolerance, with memory linear in the row and its longest
path. Linear layers run over all tokens of a row at once; attention runs tree by tree, so its cost has no term across
trees.

- A tree of at most `DENSE` tokens is one call with a dense mask.
- On a CPU, a larger tree is computed by the keys of each segment (`subtree_attention`).
- Otherwise, or with a sliding window, each segment attends to the keys of its ancestors in blocks of queries. Beyond
  `KEPT` keys the backward pass recomputes a block instead of storing its mask and copied keys.

Masks of small trees and sliding windows are shared by all layers and equal blocks. torch's fused attention lacks
soft-capped scores (Gemma 2) and sinks (gpt-oss): both are written out in blocks of queries, recomputed in the backward
pass. Unknown keywords of a model's attention raise an error.

transformers knows the implementation as `ajet_tree`; the plan is passed as keyword `trees` of the model's forward.
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
from ajet.engine.thread_count import adjust_threads

NAME = "ajet_tree"
DENSE = 640
"""Largest tree computed with a dense mask, among trees with branches or beyond the layer's window."""
QUERY_BLOCK = 1024
KEPT = 4096
"""Longest path in keys for which a block's mask and keys are stored for the backward pass."""
WRITTEN_BLOCK = 256
"""Queries per block if scores are written out."""


@dataclass(frozen=True, slots=True)
class _AttentionTerms:
    """Attention parameters of one layer."""

    scaling: float | None
    softcap: float | None
    sinks: Tensor | None
    """Score per head in the softmax without a value, shape [H]."""

    @property
    def fused(self) -> bool:
        """True if torch's fused attention supports the parameters."""
        return self.softcap is None and self.sinks is None


class TreePlan:
    """The trees of one row and their masks, created once and used by every layer.

    Not a dataclass: FSDP would rebuild a dataclass and give each layer a copy.
    """

    def __init__(self, trees: Sequence[Tree], positions: Tensor) -> None:
        """Store the trees of a row of N tokens. Masks are created on first use.

        Args:
            positions: Each token's position within its sample, shape [N].
        """
        self.trees, self.positions = trees, positions
        self.masks: dict[tuple[int | None, ...], Tensor] = {}
        """Boolean masks by the arguments of `dense_mask` or `band`, which differ in number."""
        self._scores: dict[tuple[int, torch.dtype], Tensor] = {}
        """The same masks as additive scores, by `id` of the mask and dtype."""
        self.windows: dict[int, int | None] = {}
        """Layer -> length of its sliding window, or None for full attention."""

    @property
    def sizes(self) -> list[int]:
        """Number of tokens of each tree, in order."""
        return [tree.stop - tree.start for tree in self.trees]

    def dense_mask(self, index: int, window: int | None) -> Tensor:
        """Return the mask of tree `index`, shape [n, n]. `window` limits each token to the nearest path positions."""
        mask = self.masks.get((index, window))
        if mask is None:
            tree = self.trees[index]
            mask = torch.from_numpy(tree_mask(tree)).to(self.positions.device)
            if window is not None:
                tree_positions = self.positions[tree.start : tree.stop]
                mask &= (tree_positions[:, None] - tree_positions[None, :]) < window
            self.masks[index, window] = mask
        return mask

    def band(self, queries: int, keys: int, before: int, window: int) -> Tensor:
        """Return the attention mask of a block of queries, shape [queries, keys].

        Equal blocks share one mask.

        Args:
            before: number of keys before the first query's own.
            window: number of nearest keys that a query sees.
        """
        mask = self.masks.get((queries, keys, before, window))
        if mask is None:
            mask = _make_causal_mask(queries, keys, before, self.positions.device).triu_(before - window + 1)
            self.masks[queries, keys, before, window] = mask
        return mask

    def convert_mask(self, mask: Tensor, q: Tensor, terms: _AttentionTerms) -> Tensor:
        """Return a boolean mask as additive scores, converted once for all layers.

        On a CPU, torch's fused attention would convert a boolean mask in each call and store the result for backward.
        """
        if not terms.fused or q.device.type != "cpu":
            return mask
        scores = self._scores.get((id(mask), q.dtype))
        if scores is None:
            scores = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
            self._scores[id(mask), q.dtype] = scores
        return scores


def _make_causal_mask(queries: int, keys: int, before: int, device: torch.device) -> Tensor:
    """Return a boolean mask [queries, keys]: query i sees the first `before` + i + 1 keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(before)


def register_attention() -> None:
    """Register the implementation with transformers. Idempotent."""
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
    """Compute attention with transformers' signature.

    Args:
        query: shape [1, H, N, d].
        key: shape [1, H_kv, N, d], like `value`.
        softcap: used by Gemma 2.
        s_aux: sinks, used by gpt-oss.

    Returns:
        Outputs of shape [1, N, H, d], and None.

    Raises:
        TypeError: a keyword is not supported.
    """
    refuse_unknown_keywords(NAME, keywords)
    if trees is None:
        raise TypeError("its layers do not pass keyword arguments on to their attention")
    adjust_threads(query)
    terms = _AttentionTerms(scaling, softcap, s_aux)
    trees.windows[int(getattr(module, "layer_idx", 0))] = sliding_window
    sizes = trees.sizes
    tensors_by_tree = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    outputs = []
    for index, (q, k, v) in enumerate(tensors_by_tree):
        tree = trees.trees[index]
        reach = _bound_reach(tree) if sliding_window is not None else 0
        window = sliding_window if sliding_window is not None and reach > sliding_window else None
        if tree.parents.size == 1 and window is None:
            outputs.append(_attend_dense(q, k, v, None, terms))
        elif q.shape[2] <= DENSE:
            outputs.append(_attend_dense(q, k, v, trees.convert_mask(trees.dense_mask(index, window), q, terms), terms))
        elif uses_subtrees(q, terms, window):
            outputs.append(subtree_attention(tree, q, k, v, terms.scaling))
        else:
            outputs.extend(_attend_by_segment(trees, tree, q, k, v, terms, window))
    return torch.cat([output.transpose(1, 2) for output in outputs], 1), None


def uses_subtrees(q: Tensor, terms: _AttentionTerms, window: int | None) -> bool:
    """True if `subtree_attention` can be used: the kernel returns the log-sums needed to combine parts."""
    return window is None and terms.fused and q.device.type == "cpu"


def _bound_reach(tree: Tree) -> int:
    """Return an upper bound of the tree's longest path, in tokens."""
    lengths = np.bincount(tree.segment_of, minlength=tree.parents.size)
    ends = np.zeros(tree.parents.size, np.int64)
    for segment, parent in enumerate(tree.parents):
        ends[segment] = lengths[segment] + (ends[parent] if parent >= 0 else 0)
    return int(ends.max())


def _attend_by_segment(
    trees: TreePlan, tree: Tree, q: Tensor, k: Tensor, v: Tensor, terms: _AttentionTerms, window: int | None
) -> list[Tensor]:
    """Attend segment by segment: a segment's queries see the keys of its ancestors, and its own up to each query."""
    lengths = np.bincount(tree.segment_of, minlength=tree.parents.size).tolist()
    queries, keys, values = q.split(lengths, 2), k.split(lengths, 2), v.split(lengths, 2)
    outputs = []
    for segment, parent in enumerate(tree.parents.tolist()):
        if parent < 0 and window is None:
            outputs.append(_attend_dense(queries[segment], keys[segment], values[segment], None, terms))
            continue
        path = [segment]
        while (parent := int(tree.parents[path[-1]])) >= 0:
            path.append(parent)
        path.reverse()
        end = sum(lengths[index] for index in path)
        first = end - lengths[segment]
        for block in queries[segment].split(QUERY_BLOCK, 2):
            stop = first + block.shape[2]
            window_start = 0 if window is None else max(0, first - window + 1)
            pieces = [
                (keys[index][:, :, a:b], values[index][:, :, a:b])
                for index, a, b in _slice_path(path, lengths, window_start, stop)
            ]
            visible: Tensor | int = first - window_start
            if window is not None:
                visible = trees.convert_mask(
                    trees.band(block.shape[2], stop - window_start, first - window_start, window), q, terms
                )
            if stop - window_start > KEPT and torch.is_grad_enabled():
                outputs.append(
                    checkpoint(
                        _attend_path, block, pieces, visible, terms, use_reentrant=False, preserve_rng_state=False
                    )
                )
            else:
                outputs.append(_attend_path(block, pieces, visible, terms))
            first = stop
    return outputs


def _slice_path(path: Sequence[int], lengths: Sequence[int], low: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield positions [low, stop) of a path as (segment, start, stop) within each segment."""
    offset = 0
    for segment in path:
        start, end = max(low - offset, 0), min(stop - offset, lengths[segment])
        if start < end:
            yield segment, start, end
        offset += lengths[segment]


def _attend_path(
    q: Tensor, pieces: Sequence[tuple[Tensor, Tensor]], visible: Tensor | int, terms: _AttentionTerms
) -> Tensor:
    """Attend queries [.., R, d] to a path's keys and values.

    Args:
        visible: A mask, or the number of keys before the first query's own.
    """
    keys, values = (torch.cat(tensors, 2) for tensors in zip(*pieces, strict=True))
    mask = _make_causal_mask(q.shape[2], keys.shape[2], visible, q.device) if isinstance(visible, int) else visible
    return _attend_dense(q, keys, values, mask, terms)


def _attend_dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, terms: _AttentionTerms) -> Tensor:
    """Compute scaled dot-product attention, causal without a mask. Query heads may share key heads."""
    groups = q.shape[1] // k.shape[1]
    shares_heads = terms.fused and groups > 1 and (mask is None or q.device.type == "cpu")
    if groups > 1 and not shares_heads:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if terms.fused:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=terms.scaling, enable_gqa=shares_heads
        )
    parts = []
    for start in range(0, q.shape[2], WRITTEN_BLOCK):
        block = q[:, :, start : start + WRITTEN_BLOCK]
        # without a mask, keys and queries have equal length, and no query of the block sees keys beyond its last
        visible_keys = start + block.shape[2] if mask is None else mask.shape[1]
        mask_or_offset = start if mask is None else mask[start : start + WRITTEN_BLOCK]
        arguments = (block, k[:, :, :visible_keys], v[:, :, :visible_keys], mask_or_offset, terms)
        if torch.is_grad_enabled():
            parts.append(checkpoint(_attend_written_out, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(_attend_written_out(*arguments))
    return torch.cat(parts, 2)


def _attend_written_out(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | int, terms: _AttentionTerms) -> Tensor:
    """Compute attention as two matrix products, as in transformers' eager attention.

    Args:
        visible: A mask, or the number of keys before the first query's own. A mask built here is not stored for
            backward.
    """
    if isinstance(visible, int):
        visible = _make_causal_mask(q.shape[2], k.shape[2], visible, q.device)
    scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if terms.scaling is None else terms.scaling)
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    scores = scores.masked_fill(~visible, float("-inf"))
    if terms.sinks is not None:
        sinks = terms.sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    if terms.sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights, v)


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def subtree_attention(tree: Tree, q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> Tensor:
    """Compute attention over one tree on a CPU.

    Queries are [1, H, n, d], keys and values [1, H_kv, n, d], outputs [1, H, n, d]. A tree is stored in preorder, so
    descendants of a segment follow without a gap. Descendants see all keys of the segment in one call without a mask.
    The segment's own tokens see them causally. A query's parts are combined by log-sum-exp. Backward stores only
    queries, keys, values, outputs and one number per query and head: memory is linear in the tree, and no pair of
    tokens is computed twice.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    result: Tensor = _Subtrees.apply(q, k, v, tree, scaling)
    return result


def list_pieces(tree: Tree) -> Iterator[tuple[slice, slice, bool]]:
    """Yield (queries, keys, causal) of each call. Every query's own segment comes first."""
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
    """The autograd function behind `subtree_attention`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tree: Tree, scaling: float | None) -> Tensor:
        """Compute the outputs [1, H, n, d] call by call, and save the log-sum-exp of each query's scores [1, H, n] for
        backward.
        """
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3], dtype=exact).transpose(1, 2)
        log_sums = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=exact).transpose(1, 2)
        queries_per_key_head = q.shape[1] // k.shape[1]
        for queries, keys, causal in list_pieces(tree):
            partial_output, partial_log_sum = _forward(
                q[:, :, queries],
                _repeat_heads(k, keys, queries_per_key_head),
                _repeat_heads(v, keys, queries_per_key_head),
                0.0,
                causal,
                scale=scaling,
            )
            output, log_sum = out[:, :, queries], log_sums[:, :, queries]
            if causal:
                output.copy_(partial_output)
                log_sum.copy_(partial_log_sum)
                continue
            # Two softmax parts over different keys combine with weights exp(own log-sum - joint log-sum).
            joint_log_sum = torch.logaddexp(log_sum, partial_log_sum)
            output.mul_((log_sum - joint_log_sum).exp_()[..., None]).addcmul_(
                partial_output.to(exact), (partial_log_sum - joint_log_sum).exp_()[..., None]
            )
            log_sum.copy_(joint_log_sum)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.tree, ctx.scaling = tree, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values. The final log-sums turn each call's scores into the final
        weights.
        """
        q, k, v, out, log_sums = ctx.saved_tensors
        queries_per_key_head = q.shape[1] // k.shape[1]
        gradients = [torch.zeros_like(tensor, dtype=log_sums.dtype) for tensor in (q, k, v)]
        for queries, keys, causal in list_pieces(ctx.tree):
            partial_gradients = _backward(
                grads[0][:, :, queries], q[:, :, queries],
                _repeat_heads(k, keys, queries_per_key_head), _repeat_heads(v, keys, queries_per_key_head),
                out[:, :, queries], log_sums[:, :, queries], 0.0, causal, scale=ctx.scaling,
            )  # fmt: skip
            gradients[0][:, :, queries] += partial_gradients[0]
            for gradient, partial_gradient in zip(gradients[1:], partial_gradients[1:], strict=True):
                gradient[:, :, keys] += (
                    partial_gradient
                    if queries_per_key_head == 1
                    else partial_gradient.unflatten(1, (-1, queries_per_key_head)).sum(2, dtype=log_sums.dtype)
                )
        return *(tensor.to(original.dtype) for tensor, original in zip(gradients, (q, k, v), strict=True)), None, None


def _repeat_heads(inputs: Tensor, tokens: slice, heads: int) -> Tensor:
    """Return a segment's keys or values, repeated for the query heads that share them.

    Args:
        inputs: Keys or values of all tokens.
        tokens: The range of the segment's tokens.
        heads: Query heads per key head.
    """
    segment = inputs[:, :, tokens]
    return segment if heads == 1 else segment.repeat_interleave(heads, 1)
