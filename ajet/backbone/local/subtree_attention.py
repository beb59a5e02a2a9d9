"""Attention over a large tree on a CPU: each segment's keys once, against all the queries that see them.

A tree lies in preorder, so that what continues a segment follows it without a gap. Those tokens see all of its keys, in
one call without a mask; its own tokens see them causally. A query's parts are put together by the logarithms of their
sums, which torch's fused kernel for CPUs hands out and takes back in its backward pass. Invariant: equal to attention
over each path alone, to float tolerance; nothing is kept for the backward pass but queries, keys, values, outputs and
a number for each query and head, so that memory is linear in the tree, and no pair of tokens is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ajet.context_tracker.packing import Tree

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def subtree_attention(tree: Tree, q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> Tensor:
    """Queries [1, H, n, d], keys and values [1, H_kv, n, d] of the tree's n tokens, all on a CPU, to [1, H, n, d]."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    result: Tensor = _Subtrees.apply(q, k, v, tree, scaling)
    return result


def pieces(tree: Tree) -> Iterator[tuple[slice, slice, bool]]:
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
        for at, seen, causal in pieces(tree):
            part, more = _forward(q[:, :, at], _all(k, seen, heads), _all(v, seen, heads), 0.0, causal, scale=scaling)
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
        for at, seen, causal in pieces(ctx.tree):
            parts = _backward(
                grads[0][:, :, at], q[:, :, at], _all(k, seen, heads), _all(v, seen, heads), out[:, :, at],
                sums[:, :, at], 0.0, causal, scale=ctx.scaling,
            )  # fmt: skip
            found[0][:, :, at] += parts[0]
            for into, part in zip(found[1:], parts[1:], strict=True):
                into[:, :, seen] += part if heads == 1 else part.unflatten(1, (-1, heads)).sum(2, dtype=sums.dtype)
        return *(each.to(given.dtype) for each, given in zip(found, (q, k, v), strict=True)), None, None


def _all(given: Tensor, seen: slice, heads: int) -> Tensor:
    """The keys or values of a segment, once for each of the `heads` that share them."""
    part = given[:, :, seen]
    return part if heads == 1 else part.repeat_interleave(heads, 1)
