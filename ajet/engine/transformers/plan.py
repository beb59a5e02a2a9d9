"""Lays out one forward pass of the engine (a step): its tokens, and where their keys and values go.

A step is a packed sequence of N tokens: first the next tokens of rows that generate (`NextTokens`, one block per pool),
then pieces of prompts (`Stretch`, rows of equal start and length together).

Invariant: within a layer, blocks are written in order. A stretch that continues a prefix of the same step comes later
and first copies the prefix, so a prompt shared by many rows is computed once even if all arrive together.
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
    """One next token for each of n rows of a pool: tokens begin..begin+n of the step."""

    pool: RowPool
    begin: int
    lengths: Tensor
    """Number of keys before each row's token, shape [n]."""
    longest: int  # maximum of `lengths`
    slots: Tensor | None
    """Slots of the rows, shape [n]; None if the rows are slots 0..n-1."""
    places: Tensor
    """Target indices of the new keys, shape [n * heads], in a layer's keys as [slots * heads * capacity, width]."""
    masks: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of rows in the block."""
        return int(self.lengths.shape[0])

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return a mask to add to the scores, shape [n, capacity]: 0 where the row's token sees the key, else -inf.

        Args:
            window: number of last keys that a token sees. None: all.
            dtype: number format of the scores.
        """
        cached = self.masks.get((window, dtype))
        if cached is None:
            key_positions = torch.arange(self.pool.capacity, device=self.lengths.device)
            own_position = self.lengths[:, None]
            hidden = key_positions > own_position
            if window is not None:
                hidden |= key_positions <= own_position - window
            cached = torch.zeros(hidden.shape, dtype=dtype, device=key_positions.device).masked_fill_(
                hidden, float("-inf")
            )
            self.masks[window, dtype] = cached
        return cached


@dataclass(slots=True, eq=False)
class Stretch:
    """`length` tokens from position `start` for each of g rows: tokens begin..begin+g*length of the step."""

    pool: RowPool
    begin: int
    slots: slice | Tensor
    """Slots of the rows, shape [g]; a slice for consecutive slots, because reading a slice copies no data."""
    rows: int  # g
    start: int
    length: int
    source: tuple[RowPool, slice | Tensor] | None
    """Pool and slots [g] from which the first `start` keys and values are copied within the step."""
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> Tensor | None:
        """Return a mask [length, start + length], True if the token sees the key. None stands for plain causal
        attention.

        Args:
            window: number of last keys that a token sees. None: all.
        """
        if self.start == 0 and (window is None or self.length <= window):
            return None
        cached = self.masks.get(window)
        if cached is None:
            key = torch.arange(self.start + self.length, device=self.pool.shape.device)
            query = key[self.start :, None]
            cached = key <= query
            if window is not None:
                cached &= key > query - window
            self.masks[window] = cached
        return cached


@dataclass(slots=True, eq=False)
class PlannedStep:
    """The layout of one forward pass.

    `ids` and `positions` have shape [1, N]. `sampled` maps rows to the index of their logits.
    """

    ids: Tensor
    positions: Tensor
    next_tokens: list[NextTokens]
    stretches: list[Stretch]
    sampled: list[tuple[Row, int]]
    rows: list[Row]
    """All rows that take part in the step."""
    owners: list[tuple[str | None, int]] = field(default_factory=list)
    """Adapters of consecutive tokens, as (adapter, number of tokens)."""


@dataclass(slots=True, eq=False)
class Piece:
    """A row's part in a planned step: `length` tokens from `start`, after copying the prefix from `source`."""

    row: Row
    start: int
    length: int
    source: Row | None = None


class _StepInputs:
    """The tokens of a forward pass, to which pieces are added one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._size = 0
        self._ids: list[Any] = []
        self._positions: list[Any] = []
        self._next_tokens: list[NextTokens] = []
        self._stretches: list[Stretch] = []
        self._sampled: list[tuple[Row, int]] = []
        self._owners: list[tuple[str | None, int]] = []

    def add_next_tokens(self, pool: RowPool, pieces: list[Piece]) -> None:
        """Add pieces of one token each, of rows in one pool."""
        pieces = sorted(pieces, key=lambda piece: piece.row.slot)
        slots = np.array([piece.row.slot for piece in pieces])
        starts = np.array([piece.start for piece in pieces])
        self._next_tokens.append(_next_tokens(pool, slots, starts, self._size, self._device))
        self._append_tokens(pool.tokens[slots, starts], starts, pieces)

    def add_stretch(self, pieces: list[Piece]) -> None:
        """Add pieces of equal start and length, of rows in one pool, which all copy a prefix or none."""
        pool, start, length = pieces[0].row.pool, pieces[0].start, pieces[0].length
        slots = np.array([piece.row.slot for piece in pieces])
        source_rows = [piece.source for piece in pieces if piece.source]
        copy_source = None
        if source_rows:
            source_slots = np.array([source_row.slot for source_row in source_rows])
            copy_source = source_rows[0].pool, _index_slots(source_slots, self._device)
        slot_index = _index_slots(slots, self._device)
        self._stretches.append(Stretch(pool, self._size, slot_index, len(pieces), start, length, copy_source))
        stop = start + length
        self._append_tokens(
            pool.tokens[slots, start:stop].reshape(-1), np.tile(np.arange(start, stop), len(pieces)), pieces
        )

    def _append_tokens(self, ids: Any, positions: Any, pieces: list[Piece]) -> None:
        """Add the tokens of pieces, and note which of them give the logits of a token to draw."""
        self._ids.append(ids)
        self._positions.append(positions)
        for piece in pieces:
            self._owners.append((piece.row.adapter, piece.length))
            self._size += piece.length
            # Only the last known token of a row is followed by a drawn one.
            if piece.start + piece.length == piece.row.known:
                self._sampled.append((piece.row, self._size - 1))

    def finish(self, rows: list[Row]) -> PlannedStep:
        """Return the step, in which `rows` take part."""
        return PlannedStep(
            _make_tensor(np.concatenate(self._ids), self._device)[None],
            _make_tensor(np.concatenate(self._positions), self._device)[None],
            self._next_tokens,
            self._stretches,
            self._sampled,
            rows,
            self._owners,
        )


def build_step(pieces: list[Piece], device: torch.device) -> PlannedStep:
    """Concatenate the tokens of all pieces to the inputs of one forward pass."""
    inputs = _StepInputs(device)
    pieces_by_pool: dict[RowPool, list[Piece]] = {}
    pieces_by_layout: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        if piece.length == 1 and piece.source is None:
            pieces_by_pool.setdefault(piece.row.pool, []).append(piece)
            continue
        source_capacity = piece.source.pool.capacity if piece.source else 0
        layout = (piece.row.depth, piece.row.pool.capacity, source_capacity, piece.start, piece.length)
        pieces_by_layout.setdefault(layout, []).append(piece)
    for pool, pool_pieces in pieces_by_pool.items():
        inputs.add_next_tokens(pool, pool_pieces)
    # Depth comes first in the order: a row with a greater depth copies a prefix that a row with a smaller depth has
    # computed.
    for _, stretch_pieces in sorted(pieces_by_layout.items(), key=lambda item: item[0]):
        inputs.add_stretch(stretch_pieces)
    return inputs.finish([piece.row for piece in pieces])


def _next_tokens(pool: RowPool, slots: Any, starts: Any, begin: int, device: torch.device) -> NextTokens:
    """Return the block of next tokens for n rows of a pool.

    Args:
        slots: slots of the rows in rising order, shape [n].
        starts: position of each row's next token, shape [n].
        begin: index of the block's first token in the step.
    """
    heads = np.arange(pool.shape.heads)
    places = (slots[:, None] * pool.shape.heads + heads) * pool.capacity + starts[:, None]
    fills_first_slots = slots[-1] == len(slots) - 1
    return NextTokens(
        pool,
        begin,
        _make_tensor(starts, device),
        int(starts.max()),
        None if fills_first_slots else _make_tensor(slots, device),
        _make_tensor(places.reshape(-1), device),
    )


def _index_slots(slots: Any, device: torch.device) -> slice | Tensor:
    """Return slots as a slice if consecutive, else as a tensor."""
    if np.all(np.diff(slots) == 1):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return _make_tensor(slots, device)


def _make_tensor(values: Any, device: torch.device) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64)).to(device, non_blocking=True)
