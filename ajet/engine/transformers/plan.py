"""Which tokens one forward pass computes, and where their keys and values go.

A step is a packed sequence of N tokens: first the next token of every row that has one to compute (`NextTokens`, one
block a pool), then stretches of prompts (`Stretch`, rows of equal start and length together). Invariant: within a
layer, blocks are written in order, and a stretch that continues a prefix computed in this same step comes after it
and copies it first; so a prompt that many rows share is computed once even when they all arrive together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ajet.engine.transformers.pool import Row, RowPool


@dataclass(slots=True, eq=False)
class NextTokens:
    """One further token for each of n rows of a pool: tokens begin..begin+n of the step."""

    pool: RowPool
    begin: int
    lengths: Tensor
    """[n] keys there are before this token's own."""
    longest: int
    """The greatest of them."""
    slots: Tensor | None
    """[n]; None: the rows are slots 0..n-1."""
    places: Tensor
    """[n * heads] where, in a layer's keys seen as [slots * heads * capacity, width], the new ones go."""
    masks: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Rows."""
        return int(self.lengths.shape[0])

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """[n, capacity] 0 or -inf to add to the scores; with a sliding window only its last keys are seen."""
        known = self.masks.get((window, dtype))
        if known is None:
            at = torch.arange(self.pool.capacity, device=self.lengths.device)
            last = self.lengths[:, None]
            hidden = at > last
            if window is not None:
                hidden |= at <= last - window
            known = torch.zeros(hidden.shape, dtype=dtype, device=at.device).masked_fill_(hidden, float("-inf"))
            self.masks[window, dtype] = known
        return known


@dataclass(slots=True, eq=False)
class Stretch:
    """`length` tokens from position `start` on for each of g rows: tokens begin..begin+g*length of the step."""

    pool: RowPool
    begin: int
    slots: slice | Tensor
    """[g]; a slice where they follow each other, so that reading them copies nothing."""
    rows: int
    """g"""
    start: int
    length: int
    source: tuple[RowPool, slice | Tensor] | None
    """Where the first `start` keys and values are to be copied from within this step: a pool, slots [g]."""
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> Tensor | None:
        """[length, start + length] true where a token sees a key; None where plain causal attention is meant."""
        if self.start == 0 and (window is None or self.length <= window):
            return None
        known = self.masks.get(window)
        if known is None:
            key = torch.arange(self.start + self.length, device=self.pool.shape.device)
            query = key[self.start :, None]
            known = key <= query
            if window is not None:
                known &= key > query - window
            self.masks[window] = known
        return known


@dataclass(slots=True, eq=False)
class PlannedStep:
    """One forward pass. `ids`, `positions` [1, N]; `sampled` pairs a row with the token whose logits it draws from."""

    ids: Tensor
    positions: Tensor
    next_tokens: list[NextTokens]
    stretches: list[Stretch]
    sampled: list[tuple[Row, int]]
    rows: list[Row]
    """All rows that computed something."""
    owners: list[tuple[str | None, int]] = field(default_factory=list)
    """Whose adapters the tokens pass through: so many of this one, so many of the next."""


@dataclass(slots=True, eq=False)
class Piece:
    """A row's part in the step being planned: `length` tokens from `start`; `source` is copied from first."""

    row: Row
    start: int
    length: int
    source: Row | None = None


def build_step(pieces: list[Piece], device: torch.device) -> PlannedStep:
    """Lay out the step of these pieces."""
    single = [p for p in pieces if p.length == 1 and p.source is None]
    longer = [p for p in pieces if not (p.length == 1 and p.source is None)]
    ids: list[Any] = []
    positions: list[Any] = []
    sampled: list[tuple[Row, int]] = []
    owners: list[tuple[str | None, int]] = []
    begin = 0
    next_tokens, stretches = [], []
    by_pool: dict[RowPool, list[Piece]] = {}
    for piece in single:
        by_pool.setdefault(piece.row.pool, []).append(piece)
    for pool, members in by_pool.items():
        members.sort(key=lambda p: p.row.slot)
        slots = np.array([p.row.slot for p in members])
        starts = np.array([p.start for p in members])
        next_tokens.append(_next_tokens(pool, slots, starts, begin, device))
        ids.append(pool.tokens[slots, starts])
        positions.append(starts)
        owners += [(p.row.adapter, 1) for p in members]
        sampled += [(p.row, begin + k) for k, p in enumerate(members) if p.start + 1 == p.row.known]
        begin += len(members)
    groups: dict[Any, list[Piece]] = {}
    for piece in longer:
        source = piece.source.pool.capacity if piece.source else 0
        key = (piece.row.depth, piece.row.pool.capacity, source, piece.start, piece.length)
        groups.setdefault(key, []).append(piece)
    for key in sorted(groups):
        members = groups[key]
        first = members[0]
        slots = np.array([p.row.slot for p in members])
        sources = [p.source for p in members if p.source]
        copied = (sources[0].pool, _index_slots(np.array([s.slot for s in sources]), device)) if sources else None
        pool, stop = first.row.pool, first.start + first.length
        at = _index_slots(slots, device)
        stretches.append(Stretch(pool, begin, at, len(members), first.start, first.length, copied))
        ids.append(pool.tokens[slots, first.start : stop].reshape(-1))
        positions.append(np.tile(np.arange(first.start, stop), len(members)))
        owners += [(p.row.adapter, first.length) for p in members]
        for k, p in enumerate(members):
            if stop == p.row.known:
                sampled.append((p.row, begin + (k + 1) * first.length - 1))
        begin += len(members) * first.length
    rows = [p.row for p in pieces]
    return PlannedStep(
        _make_tensor(np.concatenate(ids), device)[None],
        _make_tensor(np.concatenate(positions), device)[None],
        next_tokens,
        stretches,
        sampled,
        rows,
        owners,
    )


def _next_tokens(pool: RowPool, slots: Any, starts: Any, begin: int, device: torch.device) -> NextTokens:
    heads = np.arange(pool.shape.heads)
    places = (slots[:, None] * pool.shape.heads + heads) * pool.capacity + starts[:, None]
    together = slots[-1] == len(slots) - 1
    return NextTokens(
        pool,
        begin,
        _make_tensor(starts, device),
        int(starts.max()),
        None if together else _make_tensor(slots, device),
        _make_tensor(places.reshape(-1), device),
    )


def _index_slots(slots: Any, device: torch.device) -> slice | Tensor:
    """These slots as an index."""
    if np.all(np.diff(slots) == 1):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return _make_tensor(slots, device)


def _make_tensor(values: Any, device: torch.device) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64)).to(device, non_blocking=True)
