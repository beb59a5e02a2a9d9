"""Attention of a step over the rows' keys and values, as a transformers attention implementation.

Invariant: each token sees its own row up to itself and nothing else, and the new keys and values are in the pools when
a layer's call returns. The step travels beside the model (thread-local), not through it, so any model whose attention
goes through transformers' interface can be sampled without knowing of rows. `make_shared_copy` makes the engine's own
module tree over the trainer's tensors: it holds the very parameters, so an optimizer step in place is seen at once and
costs no memory; its mode (always evaluation), its attention and its configuration differ.
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
from ajet.engine.transformers.plan import NextTokens, PlannedStep, Stretch
from ajet.engine.transformers.pool import Shape
from ajet.schema.errors import UserError

NAME = "ajet_rows"
KEY_MULTIPLE = 16
"""Keys of a step's next tokens are read up to a multiple of this: a processor adds so many at a time, and the bits of a
row do not follow from how far others are."""
_current = threading.local()


def register_attention() -> None:
    """Make the implementation known to transformers. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, rows_attention)


@contextmanager
def computing(step: PlannedStep | ShapeProbe) -> Iterator[None]:
    """Attention calls of this thread within the block belong to `step`."""
    _current.step = step
    try:
        yield
    finally:
        _current.step = None


class ShapeProbe:
    """Learns from one forward pass what a model's keys and values look like."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int, int]] = {}
        self.windows: dict[int, int | None] = {}
        self.dtype, self.device = torch.float32, torch.device("cpu")

    def note(self, layer: int, key: Tensor, value: Tensor, window: int | None) -> None:
        """Called by each layer."""
        self.windows[layer] = window
        self.seen[layer] = (key.shape[1], key.shape[3], value.shape[3])
        self.dtype, self.device = key.dtype, key.device

    def shape(self) -> Shape:
        """Raises UserError for a model whose layers differ."""
        if not self.seen:
            raise UserError(
                "The transformers engine cannot sample this model: its attention cannot be replaced.",
                where="model.path",
                do="use rollout.engine: vllm, or a model that docs/models.md lists",
            )
        if len(set(self.seen.values())) != 1 or sorted(self.seen) != list(range(len(self.seen))):
            raise UserError(
                "The transformers engine cannot sample this model: its layers do not all keep keys of one shape.",
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
    """transformers' attention signature: query [1, H, N, d], key and value [1, K, N, d] to [1, N, H, d]. `softcap`
    and `s_aux` (attention sinks) are what Gemma 2 and gpt-oss ask for. Raises TypeError for what is not computed
    here."""
    refuse_unknown_keywords(NAME, keywords)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    how = _AttentionTerms(scale, sliding_window, softcap, s_aux)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    step = _current.step
    if isinstance(step, ShapeProbe):
        step.note(layer, key, value, sliding_window)
        length = query.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
        return _attend_grouped(query, key, value, _make_additive_mask(seen, query.dtype), how).transpose(
            1, 2
        ).contiguous(), None
    parts = [_attend_next_tokens(block, layer, query[0], key[0], value[0], how) for block in step.next_tokens]
    parts += [_attend_stretch(block, layer, query[0], key[0], value[0], how) for block in step.stretches]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


class _AttentionTerms:
    """A layer's own terms of attention: scale, window, soft cap, sinks."""

    __slots__ = ("scale", "sinks", "softcap", "window")

    def __init__(self, scale: float, window: int | None, softcap: float | None, sinks: Tensor | None) -> None:
        self.scale, self.window, self.softcap, self.sinks = scale, window, softcap, sinks

    @property
    def plain(self) -> bool:
        """Whether torch's fused attention can compute it."""
        return self.softcap is None and self.sinks is None


def _attend_next_tokens(block: NextTokens, layer: int, q: Tensor, k: Tensor, v: Tensor, how: _AttentionTerms) -> Tensor:
    """q [H, N, d], k and v [K, N, d] to [n, H, d]."""
    n, a, pool = block.count, block.begin, block.pool
    q, k, v = (t[:, a : a + n].transpose(0, 1) for t in (q, k, v))
    keys, values = pool.keys[layer], pool.values[layer]
    keys.view(-1, keys.shape[-1]).index_copy_(0, block.places, k.reshape(-1, k.shape[-1]))
    values.view(-1, values.shape[-1]).index_copy_(0, block.places, v.reshape(-1, v.shape[-1]))
    rows = slice(0, n) if block.slots is None else block.slots
    if how.plain and q.device.type == "cpu" and q.shape[-1] == values.shape[-1]:
        seen = min(pool.capacity, (block.longest // KEY_MULTIPLE + 1) * KEY_MULTIPLE)
        mask = block.mask(how.window, q.dtype)[:, :seen]
        got = attend_fused_rows(q, keys[rows, :, :seen], values[rows, :, :seen], mask, how.scale)
    else:
        # All of the capacity, masked: a product over a part of each row would first copy that part together.
        heads = keys.shape[1]
        grouped = q.reshape(n, heads, -1, q.shape[-1])
        mask = block.mask(how.window, q.dtype)[:, None, None].expand(-1, heads, grouped.shape[2], -1).flatten(0, 1)
        got = _attend_block(grouped, keys[rows], values[rows], mask, how)
    return got.reshape(n, -1, values.shape[-1])


def attend_fused_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """A token's attention in each row, by torch's fused kernel for CPUs: q [n, H, d], k and v [n, K, T, d], mask [n, T]
    to [n, H, d]. In half precision that kernel takes two to ten times as long for a key head's queries one by one as
    for all of them at once; where the processor multiplies in tiles, and in float32, it does not."""
    by_query = q.dtype == torch.float32 or has_matrix_unit()
    queries = q.unsqueeze(2) if by_query else q.unflatten(1, (k.shape[1], -1))
    mask = mask[:, None, None]
    return F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=scale, enable_gqa=by_query).reshape(
        q.shape
    )


@cache
def has_matrix_unit() -> bool:
    """Whether this processor multiplies bfloat16 in tiles (AMX)."""
    return bool(read_processor_flags().get("amx_bf16"))


def _attend_stretch(block: Stretch, layer: int, q: Tensor, k: Tensor, v: Tensor, how: _AttentionTerms) -> Tensor:
    """Attention of g rows of several tokens: [g * length, H, d]."""
    a, g, length, start = block.begin, block.rows, block.length, block.start
    stop = start + length
    keys, values = block.pool.keys[layer], block.pool.values[layer]
    if block.source is not None:
        pool, slots = block.source
        keys[block.slots, :, :start] = pool.keys[layer][slots, :, :start]
        values[block.slots, :, :start] = pool.values[layer][slots, :, :start]
    new_q, new_k, new_v = (t[:, a : a + g * length].unflatten(1, (g, length)).transpose(0, 1) for t in (q, k, v))
    keys[block.slots, :, start:stop] = new_k
    values[block.slots, :, start:stop] = new_v
    if start:
        new_k, new_v = keys[block.slots, :, :stop], values[block.slots, :, :stop]
    mask = block.mask(how.window)
    if how.plain:
        groups = new_q.shape[1] // new_k.shape[1]
        native = groups > 1 and q.device.type == "cpu"
        if groups > 1 and not native:
            new_k, new_v = (t.repeat_interleave(groups, 1) for t in (new_k, new_v))
        got = F.scaled_dot_product_attention(
            new_q, new_k, new_v, attn_mask=mask, is_causal=mask is None, scale=how.scale, enable_gqa=native
        )
    else:
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        got = _attend_grouped(new_q, new_k, new_v, _make_additive_mask(mask, q.dtype), how)
    return got.transpose(1, 2).reshape(g * length, -1, got.shape[-1])


def _attend_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, how: _AttentionTerms) -> Tensor:
    """q [g, H, L, d], k and v [g, K, T, d], mask [L, T] to [g, H, L, d]."""
    g, heads, length, _ = q.shape
    split = q.reshape(g, k.shape[1], -1, q.shape[-1])
    mask = mask.repeat(heads // k.shape[1], 1)  # a key head's queries are its heads' tokens, head by head
    return _attend_block(split, k, v, mask, how).reshape(g, heads, length, v.shape[-1])


def _attend_block(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, how: _AttentionTerms) -> Tensor:
    """q [n, K, G, d], k and v [n, K, T, d], mask [n * K, G, T] or broadcast to it. On a CPU written out, for what its
    fused kernel does not know."""
    n, heads, queries, _ = q.shape
    if how.plain and q.device.type != "cpu":
        mask = mask.expand(n * heads, -1, -1).unflatten(0, (n, heads))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=how.scale)
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if how.softcap is None:
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=how.scale)
    else:
        scores = torch.tanh(torch.bmm(q, k.transpose(1, 2)) * (how.scale / how.softcap)) * how.softcap + mask
    if how.sinks is not None:
        per_head = how.sinks.reshape(heads, -1, 1)  # [K, H / K, 1]
        per_query = per_head.repeat_interleave(queries // per_head.shape[1], 1)
        scores = torch.cat([scores, per_query.repeat(n, 1, 1).to(scores.dtype)], -1)
    weights = torch.softmax(scores, -1)  # computed in float32 whatever the type
    if how.sinks is not None:
        weights = weights[..., :-1]
    return torch.bmm(weights, v).unflatten(0, (n, heads))


def _make_additive_mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def make_shared_copy(model: Any) -> Any:
    """A copy of the modules of `model` with its parameters and buffers shared, in evaluation mode, attending by
    rows."""
    register_attention()
    shared = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    other = copy.deepcopy(model, shared)
    set_attention(other, NAME)
    other.eval()
    replace_norms(other)
    return other


def copy_weights(source: Any, into: Any) -> None:
    """Refresh `into` from `source`, cast to its type, in place. Both have the same parameter names."""
    theirs = dict(source.named_parameters())
    with torch.no_grad():
        for name, parameter in into.named_parameters():
            parameter.copy_(theirs[name])
