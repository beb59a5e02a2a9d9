"""Keys and values of rows of about one length.

Invariant: rows that still generate lie at slots 0..active-1, so that a step reads them as one block; behind them lie
rows that only keep their prefix for somebody to extend, and free slots. `tokens[s, :known]` are the row's ids,
and keys and values exist for its first `computed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Row:
    """One sequence in the pool. `call`: who it generates for; None: it keeps a prefix."""

    pool: RowPool
    slot: int
    known: int
    computed: int = 0
    planned: int = 0
    """`computed` once the step being planned has run."""
    depth: int = 0
    """How many rows of the step being planned must be written, within a layer, before this one."""
    call: Any = None
    used: int = 0
    """The step it last took part in."""
    adapter: str | None = None
    """Whose keys and values these are: no other's call can use them."""

    @property
    def ids(self) -> Any:
        """[known] int32, a view."""
        return self.pool.tokens[self.slot, : self.known]

    def append(self, token: int) -> None:
        """Note a sampled token, to be computed with the next step."""
        self.pool.tokens[self.slot, self.known] = token
        self.known += 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What one token's keys and values take: layers, key-value heads, their widths, type and place."""

    layers: int
    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes for one token over all layers."""
        return self.layers * self.heads * (self.key_width + self.value_width) * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class RowPool:
    """`capacity` tokens a row. `keys` [layers, slots, heads, capacity, width], `values` likewise."""

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
        s = self.shape
        # Zeros, not garbage: what is masked is multiplied by 0, and 0 times NaN is NaN.
        keys = torch.zeros(s.layers, slots, s.heads, self.capacity, s.key_width, dtype=s.dtype, device=s.device)
        values = torch.zeros(s.layers, slots, s.heads, self.capacity, s.value_width, dtype=s.dtype, device=s.device)
        return keys, values, np.full((slots, self.capacity), -1, np.int32)

    def reserve(self, slots: int) -> None:
        """Have room for `slots` rows."""
        have = len(self.rows)
        if slots <= have:
            return
        keys, values, tokens = self._make_tensors(slots)
        keys[:, :have], values[:, :have], tokens[:have] = self.keys, self.values, self.tokens
        self.keys, self.values, self.tokens = keys, values, tokens
        self.rows += [None] * (slots - have)

    def free_slot(self) -> int | None:
        """A slot behind the active ones that nobody holds."""
        for slot in range(self.active, len(self.rows)):
            if self.rows[slot] is None:
                return slot
        return None

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots."""
        if a == b:
            return
        first, second = self.rows[a], self.rows[b]
        n, m = (row.computed if row else 0 for row in (first, second))
        for kv in (self.keys, self.values):
            copied = kv[:, a, :, :n].clone() if m else kv[:, a, :, :n]
            kv[:, a, :, :m] = kv[:, b, :, :m]
            kv[:, b, :, :n] = copied
        self.tokens[[a, b]] = self.tokens[[b, a]]
        self.rows[a], self.rows[b] = second, first
        if first:
            first.slot = b
        if second:
            second.slot = a

    def shared(self, prompt: Any, adapter: str | None = None) -> tuple[int, Row | None]:
        """The longest prefix of `prompt` [P] that a row of `adapter` here has, or will have after the step being
        planned."""
        width = min(len(prompt), self.capacity)
        if not self.rows or width == 0:
            return 0, None
        differs = self.tokens[:, :width] != prompt[:width]
        first = np.where(differs.any(1), differs.argmax(1), width)
        have = [min(row.planned, row.known) if row and row.adapter == adapter else 0 for row in self.rows]
        lengths = np.minimum(first, have)
        slot = int(lengths.argmax())
        return int(lengths[slot]), self.rows[slot]
