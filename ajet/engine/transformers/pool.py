"""RowPool: keys and values of sequences (rows) of similar length, in one tensor.

Invariant: generating rows occupy slots 0..active-1, so a step reads them as one block. Behind them are rows that only
cache a prefix, and free slots. `tokens[s, :known]` are a row's ids. Keys and values exist for the first `computed` of
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Row:
    """One sequence in the pool. `call` is its request; None if the row only caches a prefix."""

    pool: RowPool
    slot: int
    known: int
    computed: int = 0
    planned: int = 0
    """Value of `computed` after the planned step."""
    depth: int = 0
    """Number of rows of the planned step that must be written before this row within a layer."""
    call: Any = None
    used: int = 0
    """Step in which the row last took part."""
    adapter: str | None = None
    """Adapter that computed the keys and values; only calls with the same adapter can reuse them."""

    @property
    def ids(self) -> Any:
        """View of the row's ids, [known] int32."""
        return self.pool.tokens[self.slot, : self.known]

    def append(self, token: int) -> None:
        """Append a sampled token, whose keys and values the next step computes."""
        self.pool.tokens[self.slot, self.known] = token
        self.known += 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of one token's keys and values: layers, key-value heads, widths, dtype and device."""

    layers: int
    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes per token over all layers."""
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class RowPool:
    """Rows of up to `capacity` tokens. `keys` and `values`: [layers, slots, heads, capacity, width]."""

    shape: Shape
    capacity: int
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)
    tokens: Any = field(init=False)
    rows: list[Row | None] = field(default_factory=list)
    active: int = 0

    def __post_init__(self) -> None:
        self.keys, self.values, self.tokens = self._make_tensors(0)

    def _make_tensors(self, slots: int) -> tuple[Tensor, Tensor, Any]:
        """Return keys, values and token ids (-1: none) for a number of slots."""
        shape = self.shape
        # zeros, because masked values are multiplied by 0, and 0 times NaN is NaN
        keys = torch.zeros(
            shape.layers, slots, shape.heads, self.capacity, shape.key_width, dtype=shape.dtype, device=shape.device
        )
        values = torch.zeros(
            shape.layers, slots, shape.heads, self.capacity, shape.value_width, dtype=shape.dtype, device=shape.device
        )
        return keys, values, np.full((slots, self.capacity), -1, np.int32)

    def reserve(self, slots: int) -> None:
        """Grow the pool to at least `slots` rows."""
        old_count = len(self.rows)
        if slots <= old_count:
            return
        keys, values, tokens = self._make_tensors(slots)
        keys[:, :old_count], values[:, :old_count], tokens[:old_count] = self.keys, self.values, self.tokens
        self.keys = keys
        self.values = values
        self.tokens = tokens
        self.rows += [None] * (slots - old_count)

    def free_slot(self) -> int | None:
        """Return a free slot behind the active ones, or None."""
        for slot in range(self.active, len(self.rows)):
            if self.rows[slot] is None:
                return slot
        return None

    def swap(self, a: int, b: int) -> None:
        """Exchange the rows of two slots, with their ids and their computed keys and values."""
        if a == b:
            return
        first, second = self.rows[a], self.rows[b]
        first_count, second_count = (row.computed if row else 0 for row in (first, second))
        for kv in (self.keys, self.values):
            copied = kv[:, a, :, :first_count].clone() if second_count else kv[:, a, :, :first_count]
            kv[:, a, :, :second_count] = kv[:, b, :, :second_count]
            kv[:, b, :, :first_count] = copied
        self.tokens[[a, b]] = self.tokens[[b, a]]
        self.rows[a], self.rows[b] = second, first
        if first:
            first.slot = b
        if second:
            second.slot = a

    def shared(self, prompt: Any, adapter: str | None = None) -> tuple[int, Row | None]:
        """Return the longest prefix of `prompt` [P] in a row of the adapter, as (number of tokens, row).

        Tokens count whose keys and values are computed, or will be after the planned step. Without a row: (0, None).
        """
        width = min(len(prompt), self.capacity)
        if not self.rows or width == 0:
            return 0, None
        differs = self.tokens[:, :width] != prompt[:width]
        equal_counts = np.where(differs.any(1), differs.argmax(1), width)
        computed_counts = [min(row.planned, row.known) if row and row.adapter == adapter else 0 for row in self.rows]
        lengths = np.minimum(equal_counts, computed_counts)
        slot = int(lengths.argmax())
        return int(lengths[slot]), self.rows[slot]
