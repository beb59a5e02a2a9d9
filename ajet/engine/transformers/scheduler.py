"""Who computes what in the next step: admission, shared prefixes, long prompts in portions.

Invariant: first come, first served; rows that already generate are never held up by a wait for others, only by the
`step_tokens` of prompt that a step may compute beside them. A new call computes nothing that a row already has, or
that another one computes in this very step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from ajet.engine.contract import TokenRequest
from ajet.engine.draws import stream_of
from ajet.engine.streams import Stream
from ajet.engine.transformers.plan import Piece
from ajet.engine.transformers.pool import Row
from ajet.engine.transformers.rows import Rows

WORTH = 16
"""A shared prefix shorter than this is computed again: copying it costs about as much."""
AHEAD = 64
"""Tokens of a reply to have place for from the start; longer ones move to a longer row when they get there."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A call, from its arrival to its last token."""

    request: TokenRequest
    stream: Stream
    limit: int
    """Tokens it may generate: its own bound, or what the model's context leaves."""
    draws: int = 0
    row: Row | None = None
    drawn: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logprobs_unit: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = stream_of(self.request.draws)


class Scheduler:
    """Turns waiting calls and active rows into the pieces of a step."""

    def __init__(self, rows: Rows, *, max_num_seqs: int, step_tokens: int) -> None:
        self._rows, self._max, self._step_tokens = rows, max_num_seqs, step_tokens
        self.waiting: deque[Waiting] = deque()

    def plan(self) -> tuple[list[Piece], list[tuple[Row, Row]]]:
        """The pieces of the next step, and (follower, leader) for each row whose whole prompt the leader computes in
        this step: it draws from the same logits and gets a copy of the leader's keys and values."""
        self._rows.clock += 1
        pieces: list[Piece] = []
        budget = self._step_tokens
        active = self._rows.active
        for row in active:
            row.depth = 0
        for row in active:
            if row.known > row.pool.capacity:
                raise AssertionError("a row was not moved before it was full")
            length = min(row.known - row.computed, max(budget, 1))
            budget -= length if length > 1 else 0
            pieces.append(self._piece(row, row.computed, length, None))
        followers: list[tuple[Row, Row]] = []
        count = len(active)
        self._rows.expect([_room(call) for call in islice(self.waiting, self._max - count)])
        while self.waiting and count < self._max and budget > 0:
            call = self.waiting.popleft()
            budget -= self._admit(call, budget, pieces, followers)
            count += 1
        return pieces, followers

    def _piece(self, row: Row, start: int, length: int, source: Row | None) -> Piece:
        row.planned, row.used = start + length, self._rows.clock
        return Piece(row, start, length, source)

    def _admit(self, call: Waiting, budget: int, pieces: list[Piece], followers: list[tuple[Row, Row]]) -> int:
        """Give the call a row; answers how many tokens of the budget it takes in this step."""
        prompt = np.ascontiguousarray(call.request.prompt_ids, dtype=np.int32)
        size = len(prompt)
        room, adapter = _room(call), call.request.adapter
        shared, other = self._rows.shared(prompt, adapter)
        if shared < WORTH or other is None:
            shared, other = 0, None
        if other is not None and other.call is None and room <= other.pool.capacity:
            start = min(shared, size - 1)
            self._rows.revive(other, prompt, start)
            row, source = other, None
        elif other is not None and shared == size == other.known and other.computed < size:
            row = self._rows.place(prompt, room, adapter)
            row.call, row.planned, call.row = call, 0, row
            followers.append((row, other))
            return 0
        else:
            start = min(shared, size - 1)
            row, source = self._rows.place(prompt, room, adapter), other
        row.call, call.row, row.depth = call, row, 0
        if source is not None and source.computed >= start:
            _copy(source, row, start)
            source = None
        if source is not None:
            row.depth = source.depth + 1
        length = min(size - start, budget)
        pieces.append(self._piece(row, start, length, source))
        return length


def _room(call: Waiting) -> int:
    return len(call.request.prompt_ids) + min(call.limit, AHEAD)


def _copy(source: Row, into: Row, length: int) -> None:
    """The first `length` keys and values of a row, over all layers."""
    for name in ("keys", "values"):
        theirs, ours = getattr(source.pool, name), getattr(into.pool, name)
        ours[:, into.slot, :, :length] = theirs[:, source.slot, :, :length]
    into.computed = length


def follow(pairs: list[tuple[Row, Row]]) -> None:
    """After the step: give each follower its leader's keys and values, all of one leader at once."""
    by_leader: dict[Any, list[Row]] = {}
    for follower, leader in pairs:
        by_leader.setdefault((leader, follower.pool), []).append(follower)
    for (leader, pool), rows in by_leader.items():
        slots = [row.slot for row in rows]
        length = leader.computed if leader.computed < rows[0].known else rows[0].known
        for name in ("keys", "values"):
            theirs, ours = getattr(leader.pool, name), getattr(pool, name)
            ours[:, slots, :, :length] = theirs[:, leader.slot, :, :length].unsqueeze(1)
        for row in rows:
            row.computed = row.planned = length
