"""Attention of a step over the rows' keys and values, as a transformers attention implementation.

Invariant: each token sees only its own row up to itself, and new keys and values are in the pools when a layer's call
returns. The step is passed in a thread-local variable, not through the model, so any model that uses transformers'
attention interface can be sampled. `make_shared_copy` makes the engine's module tree over the trainer's parameters: an
optimizer step in place is visible at once and costs no memory. Mode (always evaluation), attention and configuration of
the copy are separate.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ajet.engine.models import read_processor_flags
from ajet.engine.rms_norm import replace_norms
from ajet.engine.same_model import refuse_unknown_keywords, set_attention
from ajet.engine.thread_count import adjust_threads
from ajet.engine.transformers.plan import NextTokens, PlannedStep, Stretch
from ajet.engine.transformers.pool import Shape
from ajet.schema.errors import UserError

NAME = "ajet_rows"
KEY_MULTIPLE = 16
"""The keys read for next tokens are rounded up to a multiple of this number.

A processor adds that many keys at a time, so a row's bits do not depend on the length of other rows.
"""
_current = threading.local()


def register_attention() -> None:
    """Register the implementation with transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, rows_attention)


@contextmanager
def computing(step: PlannedStep | ShapeProbe) -> Iterator[None]:
    """Within the block, attention calls of this thread belong to `step`."""
    _current.step = step
    try:
        yield
    finally:
        _current.step = None


class ShapeProbe:
    """Records the shape of a model's keys and values during one forward pass."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int, int]] = {}
        self.windows: dict[int, int | None] = {}
        self.dtype, self.device = torch.float32, torch.device("cpu")

    def note(self, layer: int, key: Tensor, value: Tensor, window: int | None) -> None:
        """Record one layer's shapes and window. Each layer calls this in its forward pass."""
        self.windows[layer] = window
        self.seen[layer] = (key.shape[1], key.shape[3], value.shape[3])
        self.dtype, self.device = key.dtype, key.device

    def shape(self) -> Shape:
        """Return the common shape of all layers.

        Raises:
            UserError: the layers differ, or the attention cannot be replaced.
        """
        if not self.seen:
            raise UserError(
                "The transformers engine cannot sample this model: ajet cannot replace its attention function.",
                where="model.path",
                do="set rollout.engine: vllm, or use a model that docs/models.md lists",
            )
        if len(set(self.seen.values())) != 1 or sorted(self.seen) != list(range(len(self.seen))):
            raise UserError(
                "The transformers engine cannot sample this model: the keys and values of its layers differ in shape.",
                where="model.path",
            )
        heads, key_width, value_width = self.seen[0]
        return Shape(len(self.seen), heads, key_width, value_width, self.dtype, self.device)


def rows_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Compute attention with transformers' signature.

    Args:
        query: shape [1, H, N, d].
        key: shape [1, K, N, d], like `value`.
        softcap: used by Gemma 2.
        s_aux: attention sinks, used by gpt-oss.

    Returns:
        Outputs of shape [1, N, H, d], and None.

    Raises:
        TypeError: a keyword is not supported.
    """
    refuse_unknown_keywords(NAME, keywords)
    adjust_threads()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    terms = _AttentionTerms(scale, sliding_window, softcap, s_aux)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    step = _current.step
    if isinstance(step, ShapeProbe):
        step.note(layer, key, value, sliding_window)
        length = query.shape[2]
        visible = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        return _attend_grouped(query, key, value, _make_additive_mask(visible, query.dtype), terms).transpose(
            1, 2
        ).contiguous(), None
    parts = [_attend_next_tokens(block, layer, query[0], key[0], value[0], terms) for block in step.next_tokens]
    parts += [_attend_stretch(block, layer, query[0], key[0], value[0], terms) for block in step.stretches]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


class _AttentionTerms:
    """Attention parameters of one layer: scale, window, soft cap, sinks."""

    __slots__ = ("scale", "sinks", "softcap", "window")

    def __init__(self, scale: float, window: int | None, softcap: float | None, sinks: Tensor | None) -> None:
        self.scale = scale
        self.window = window
        self.softcap = softcap
        self.sinks = sinks

    @property
    def plain(self) -> bool:
        """True if torch's fused attention supports the parameters."""
        return self.softcap is None and self.sinks is None


def _attend_next_tokens(
    block: NextTokens, layer: int, q: Tensor, k: Tensor, v: Tensor, terms: _AttentionTerms
) -> Tensor:
    """Attend one next token for each row of a block, and store its keys and values in the row's pool first.

    Args:
        q: queries of the step, shape [H, N, d].
        k: keys of the step, shape [K, N, d], like `v`.

    Returns:
        Outputs of the block's n tokens, shape [n, H, d].
    """
    n, begin, pool = block.count, block.begin, block.pool
    q, k, v = (tensor[:, begin : begin + n].transpose(0, 1) for tensor in (q, k, v))
    keys, values = pool.keys[layer], pool.values[layer]
    keys.view(-1, keys.shape[-1]).index_copy_(0, block.places, k.reshape(-1, k.shape[-1]))
    values.view(-1, values.shape[-1]).index_copy_(0, block.places, v.reshape(-1, v.shape[-1]))
    rows = slice(0, n) if block.slots is None else block.slots
    if terms.plain and q.device.type == "cpu" and q.shape[-1] == values.shape[-1]:
        visible = min(pool.capacity, (block.longest // KEY_MULTIPLE + 1) * KEY_MULTIPLE)
        mask = block.mask(terms.window, q.dtype)[:, :visible]
        output = attend_fused_rows(q, keys[rows, :, :visible], values[rows, :, :visible], mask, terms.scale)
    else:
        # The product covers the complete capacity, masked. A product over a part of each row would copy the parts.
        heads = keys.shape[1]
        grouped = q.reshape(n, heads, -1, q.shape[-1])
        mask = block.mask(terms.window, q.dtype)[:, None, None].expand(-1, heads, grouped.shape[2], -1).flatten(0, 1)
        output = _attend_block(grouped, keys[rows], values[rows], mask, terms)
    return output.reshape(n, -1, values.shape[-1])


def attend_fused_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attend one token per row with torch's fused CPU kernel.

    Half precision takes two to ten times as long for one query at a time as for all queries of a key head together,
    except on processors with a matrix unit. float32 shows no difference.

    Args:
        q: shape [n, H, d].
        k: shape [n, K, T, d], like `v`.
        mask: shape [n, T].

    Returns:
        Outputs of shape [n, H, d].
    """
    by_query = q.dtype == torch.float32 or has_matrix_unit()
    queries = q.unsqueeze(2) if by_query else q.unflatten(1, (k.shape[1], -1))
    mask = mask[:, None, None]
    return F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=scale, enable_gqa=by_query).reshape(
        q.shape
    )


@cache
def has_matrix_unit() -> bool:
    """True if the processor multiplies bfloat16 in tiles (AMX)."""
    return bool(read_processor_flags().get("amx_bf16"))


def _attend_stretch(block: Stretch, layer: int, q: Tensor, k: Tensor, v: Tensor, terms: _AttentionTerms) -> Tensor:
    """Attend several new tokens of g rows, and store their keys and values in the rows' pool first.

    Args:
        q: queries of the step, shape [H, N, d].
        k: keys of the step, shape [K, N, d], like `v`.

    Returns:
        Outputs of the block's tokens, shape [g * length, H, d].
    """
    begin = block.begin
    g = block.rows
    length = block.length
    start = block.start
    stop = start + length
    keys, values = block.pool.keys[layer], block.pool.values[layer]
    if block.source is not None:  # the rows share a prefix that another row has computed earlier in this step
        pool, slots = block.source
        keys[block.slots, :, :start] = pool.keys[layer][slots, :, :start]
        values[block.slots, :, :start] = pool.values[layer][slots, :, :start]
    new_q, new_k, new_v = (
        tensor[:, begin : begin + g * length].unflatten(1, (g, length)).transpose(0, 1) for tensor in (q, k, v)
    )
    keys[block.slots, :, start:stop] = new_k
    values[block.slots, :, start:stop] = new_v
    if start:  # the tokens also see the keys before them
        new_k, new_v = keys[block.slots, :, :stop], values[block.slots, :, :stop]
    mask = block.mask(terms.window)
    if terms.plain:
        groups = new_q.shape[1] // new_k.shape[1]
        uses_grouped_heads = groups > 1 and q.device.type == "cpu"
        if groups > 1 and not uses_grouped_heads:
            new_k, new_v = (tensor.repeat_interleave(groups, 1) for tensor in (new_k, new_v))
        output = F.scaled_dot_product_attention(
            new_q,
            new_k,
            new_v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=terms.scale,
            enable_gqa=uses_grouped_heads,
        )
    else:
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        output = _attend_grouped(new_q, new_k, new_v, _make_additive_mask(mask, q.dtype), terms)
    return output.transpose(1, 2).reshape(g * length, -1, output.shape[-1])


def _attend_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, terms: _AttentionTerms) -> Tensor:
    """Attend with grouped heads: q [g, H, L, d], k and v [g, K, T, d], mask [L, T] to [g, H, L, d]."""
    g, heads, length, _ = q.shape
    split = q.reshape(g, k.shape[1], -1, q.shape[-1])
    # a key head's queries are all tokens of its first query head, then of the next
    mask = mask.repeat(heads // k.shape[1], 1)
    return _attend_block(split, k, v, mask, terms).reshape(g, heads, length, v.shape[-1])


def _attend_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, terms: _AttentionTerms) -> Tensor:
    """Attend q [n, K, G, d] to k and v [n, K, T, d] under a mask that broadcasts to [n * K, G, T].

    On a CPU the products are written out, because its fused kernel lacks soft caps and sinks.
    """
    n, heads, queries, _ = q.shape
    if terms.plain and q.device.type != "cpu":
        mask = mask.expand(n * heads, -1, -1).unflatten(0, (n, heads))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=terms.scale)
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if terms.softcap is None:
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=terms.scale)
    else:
        scores = torch.tanh(torch.bmm(q, k.transpose(1, 2)) * (terms.scale / terms.softcap)) * terms.softcap + mask
    if terms.sinks is not None:
        per_head = terms.sinks.reshape(heads, -1, 1)  # shape [K, H / K, 1]
        per_query = per_head.repeat_interleave(queries // per_head.shape[1], 1)
        scores = torch.cat([scores, per_query.repeat(n, 1, 1).to(scores.dtype)], -1)
    weights = torch.softmax(scores, -1)  # softmax computes in float32 for every dtype
    if terms.sinks is not None:
        weights = weights[..., :-1]
    return torch.bmm(weights, v).unflatten(0, (n, heads))


def _make_additive_mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to the scores: 0 where `seen` is True, else -inf."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def make_shared_copy(model: Any) -> Any:
    """Copy the module tree of `model` with shared parameters and buffers, in evaluation mode, with row attention."""
    register_attention()
    # The memo of deepcopy: tensors listed there are used as they are, not copied.
    shared_tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    model_copy = copy.deepcopy(model, shared_tensors)
    set_attention(model_copy, NAME)
    model_copy.eval()
    replace_norms(model_copy)
    return model_copy


def copy_weights(source: Any, into: Any) -> None:
    """Copy the parameters of `source` into `into` in place, cast to its dtype. Parameter names must be equal."""
    source_parameters = dict(source.named_parameters())
    with torch.no_grad():
        for name, parameter in into.named_parameters():
            parameter.copy_(source_parameters[name])
