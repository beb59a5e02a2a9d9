"""A packed row through the model: hidden states once, logits for the trained positions only, chunk by chunk.

Invariant: equal to the model's own forward pass over each sample alone, to float tolerance; `probe` holds every
model against that before the first row, and one that disagrees (its layers do not attend through transformers'
attention interface, or it carries state along the row) is given its samples one at a time instead.

The head runs forward and backward chunk by chunk, before the trunk's backward pass: at no time are there more than
`CHUNK_BYTES` of float32 logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from ajet.backbone.local import tree_attention
from ajet.backbone.local.token_logprobs import token_logprobs
from ajet.backbone.local.tree_attention import TreePlan
from ajet.context_tracker.packing import PackedRow, Tree
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.context_tracker.packing import Indices

CHUNK_BYTES = 32 * 2**20

TokenLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""Logprobs [C], entropies [C] and the targets [start, stop) that they belong to, to the chunk's summed loss."""


class PackedForward:
    """One model's forward pass over packed rows. `model` is a transformers causal language model."""

    def __init__(self, model: Any, *, packed: bool | None = None) -> None:
        self.model = model
        self.trunk = model.get_decoder()
        self.head = model.get_output_embeddings()
        self.packed = probe(self) if packed is None else packed

    @property
    def device(self) -> torch.device:
        """Where its tokens must be."""
        device: torch.device = self.model.device
        return device

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """[K] float32 logprobs of the row's targets, without gradient."""
        with torch.no_grad():
            hidden = self.hidden(row)
            targets = self._on_device(row.targets.token)
            parts = [token_logprobs(self.logits(hidden[at]), targets[at], temperature)[0] for at in self._chunks(row)]
        return torch.cat(parts)

    def backward(self, row: PackedRow, temperature: float, loss: TokenLoss) -> float:
        """Add the gradient of the row's loss to the weights' gradients; answers the loss."""
        hidden = self.hidden(row)
        targets = self._on_device(row.targets.token)
        total, grads = 0.0, []
        for at in self._chunks(row):
            leaf = hidden[at].detach().requires_grad_()
            logprobs, entropy = token_logprobs(self.logits(leaf), targets[at], temperature)
            value = loss(logprobs, entropy, at)
            value.backward()
            assert leaf.grad is not None
            grads.append(leaf.grad)
            total += value.item()
        if hidden.requires_grad:
            hidden.backward(torch.cat(grads))
        return total

    def hidden(self, row: PackedRow) -> Tensor:
        """[K, H] the hidden states that the row's targets are predicted from."""
        ids, positions = self._on_device(row.ids)[None], self._on_device(row.positions)[None]
        source = self._on_device(row.targets.source)
        if self.packed:
            plan = TreePlan(row.trees, positions[0])
            states = self.trunk(input_ids=ids, position_ids=positions, use_cache=False, trees=plan).last_hidden_state
            return states[0].index_select(0, source)
        parts = [self._alone(tree, ids, positions) for tree in row.trees]
        return torch.cat(parts).index_select(0, source)

    def logits(self, hidden: Tensor) -> Tensor:
        """[C, V] from [C, H], with the scalings that transformers' models apply after their head."""
        logits = self.head(hidden)
        config = self.model.config.get_text_config()
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (factor := getattr(config, "logit_scale", None)) is not None:
            logits = logits * factor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        result: Tensor = logits
        return result

    def _alone(self, tree: Tree, ids: Tensor, positions: Tensor) -> Tensor:
        assert tree.parents.size == 1, "rows for this model are packed without sharing"
        at = slice(tree.start, tree.stop)
        states: Tensor = self.trunk(
            input_ids=ids[:, at], position_ids=positions[:, at], use_cache=False
        ).last_hidden_state[0]
        return states

    def _chunks(self, row: PackedRow) -> list[slice]:
        count, vocabulary = row.targets.token.size, self.head.weight.shape[0]
        size = max(1, CHUNK_BYTES // (4 * vocabulary))
        pieces = max(1, math.ceil(count / size))
        edges = np.linspace(0, count, pieces + 1).astype(int).tolist()
        return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]

    def _on_device(self, array: Indices | Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, torch.int64)


def probe(forward: PackedForward) -> bool:
    """Whether the model computes packed rows rightly; switches its attention to trees if so, leaves it if not.

    Raises ConfigError when not even its logits can be computed from its hidden states.
    """
    model, vocabulary = forward.model, forward.head.weight.shape[0]
    draw = np.random.default_rng(0)
    shared, left, right = (draw.integers(0, vocabulary, size) for size in (4, 3, 3))
    before = model.config._attn_implementation
    with torch.no_grad():
        plain = [
            model(input_ids=forward._on_device(np.concatenate([shared, end]))[None], use_cache=False).logits[0]
            for end in (left, right)
        ]
        wanted = torch.cat([plain[0], plain[1][4:], plain[1]]).float()
        alone = forward.trunk(input_ids=forward._on_device(np.concatenate([shared, left]))[None], use_cache=False)
        if not _close(forward.logits(alone.last_hidden_state[0]).float(), plain[0].float()):
            raise ConfigError(
                f"The logits of {type(model).__name__} are not its head's output: ajet cannot train it faithfully.",
                where="ajet.model.path",
                expected="a causal language model whose logits are lm_head(hidden states), scaled or soft-capped",
            )
        tree_attention.register()
        trees = [
            Tree(0, 10, np.array([0] * 4 + [1] * 3 + [2] * 3), np.array([-1, 0, 0])),
            Tree(10, 17, np.zeros(7, np.int64), np.array([-1])),
        ]
        ids = np.concatenate([shared, left, right, shared, right])
        positions = np.concatenate([np.arange(7), np.arange(4, 7), np.arange(7)])
        try:
            model.set_attn_implementation(tree_attention.NAME)
            at = forward._on_device(positions)
            states = forward.trunk(
                input_ids=forward._on_device(ids)[None],
                position_ids=at[None],
                use_cache=False,
                trees=TreePlan(trees, at),
            ).last_hidden_state[0]
            agrees = _close(forward.logits(states).float(), wanted)
        except (TypeError, ValueError) as error:
            logger.debug("{} refuses packed rows: {}", type(model).__name__, error)
            agrees = False
    if not agrees:
        model.set_attn_implementation(before)
        logger.warning("{} cannot be given packed rows: its samples go one at a time", type(model).__name__)
    return agrees


def _close(found: Tensor, wanted: Tensor) -> bool:
    """Equal up to what rounding explains: on average within 5% of the spread of the wanted values."""
    return bool((found - wanted).abs().mean() <= 0.05 * wanted.std())
