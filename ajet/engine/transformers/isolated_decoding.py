"""A few sequences through the engine's own forward pass, beside its thread: rows, caches and counts of the engine's
calls stay as they are, and no random number is drawn.

Invariant: the steps are those of calls: prompts together in one step (one of them continuing another's prefix), then
one token a row and step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ajet.engine.same_model import EAGER, logits_match, pad_sequences, use_attention
from ajet.engine.transformers.plan import Piece, build_step
from ajet.engine.transformers.pool import Row, Shape
from ajet.engine.transformers.rows import Rows
from ajet.schema.errors import UserError

Forward = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
"""`TransformersEngine._forward`."""
Choose = Callable[[int, Tensor], list[int]]
"""The how-manieth token of the replies and the logits [B, V] before it, to the token of each row."""


def decode_sequences(
    forward: Forward,
    shape: Shape,
    prompts: list[Any],
    count: int,
    choose: Choose,
    *,
    shared: int = 0,
    adapter: str | None = None,
) -> Tensor:
    """[B, count, V] the logits that each of `count` tokens after `prompts` is drawn from; `choose` says what is drawn.
    With `shared`, the second prompt begins with that many tokens of the first and copies their keys and values."""
    rows = Rows(shape, max_rows=2 * len(prompts), max_bytes=0)
    placed = [rows.place(np.asarray(ids, np.int32), len(ids) + count, adapter) for ids in prompts]
    pieces = [Piece(row, 0, row.known) for row in placed]
    if shared:
        placed[1].depth = 1
        pieces[1] = Piece(placed[1], shared, placed[1].known - shared, placed[0])
    found = []
    for turn in range(count):
        logits = _run_step(forward, shape, placed, pieces)
        found.append(logits)
        for row, token in zip(placed, choose(turn, logits), strict=True):
            row.depth = 0
            row.append(token)
        pieces = [Piece(row, row.computed, 1) for row in placed]
    return torch.stack(found, 1)


def _run_step(forward: Forward, shape: Shape, rows: list[Row], pieces: list[Piece]) -> Tensor:
    """[B, V] the logits after each row's last token."""
    step = build_step(pieces, shape.device)
    at = {id(row): index for row, index in step.sampled}
    wanted = torch.tensor([at[id(row)] for row in rows], dtype=torch.long, device=shape.device)
    logits = forward(step, step.ids, step.positions, wanted)
    for piece in pieces:
        piece.row.computed = piece.row.planned = piece.start + piece.length
    return logits


PREFIX, LENGTHS, REPLY = 12, (19, 33, 7), 6
"""The probe's prompts, of which the first two share a prefix, and how many tokens follow each."""
DRAWS = 3
"""Of the probe's tokens, in types of fewer bits: there a token that fits nowhere may make rounding as large as a leak
would be, once in several draws, while a leak is in each of them."""


def require_eager_agreement(model: Any, forward: Forward, shape: Shape, vocabulary: int) -> None:
    """Compare a few sequences with the model's eager forward pass over each alone. Raises UserError where they
    differ, whatever is drawn."""
    for seed in range(1 if shape.dtype == torch.float32 else DRAWS):
        draw = np.random.default_rng(seed)
        sequences = [draw.integers(0, vocabulary, size + REPLY) for size in LENGTHS]
        sequences[1][:PREFIX] = sequences[0][:PREFIX]
        if logits_match(*compute_both_logits(model, forward, shape, sequences), shape.dtype):
            return
    raise UserError(
        f"{type(model).__name__} cannot be sampled by the transformers engine: its layers carry state along a row, "
        "or attend in a way of their own, and the rows of a step would change each other.",
        where="model.path",
        do="use rollout.engine: vllm, or a model that docs/models.md lists",
    )


def compute_both_logits(model: Any, forward: Forward, shape: Shape, sequences: list[Any]) -> tuple[Tensor, Tensor]:
    """[B, REPLY, V] twice: the engine's logits of the sequences' last tokens, and those of each alone."""
    found = decode_sequences(
        forward,
        shape,
        [ids[:-REPLY] for ids in sequences],
        REPLY,
        lambda turn, _: [int(ids[size + turn]) for ids, size in zip(sequences, LENGTHS, strict=True)],
        shared=PREFIX,
    )
    with torch.inference_mode(), use_attention(model, EAGER):
        logits = model(input_ids=pad_sequences(sequences, shape.device), use_cache=False).logits
    plain = [row[len(ids) - REPLY - 1 : len(ids) - 1] for row, ids in zip(logits, sequences, strict=True)]
    return found, torch.stack(plain)
