"""Decodes a few sequences with the engine's forward pass, isolated from the engine's calls.

Rows, caches and counts of running calls stay unchanged, and no random number is drawn.

Invariant: the steps are the same as for calls: all prompts in one step (one may continue another's prefix), then one
token per row and step.
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
"""The signature shared with `TransformersEngine._compute_logits`."""
Choose = Callable[[int, Tensor], list[int]]
"""Maps the index of the reply token and its logits [B, V] to each row's token."""


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
    """Decode `count` tokens after `prompts`, and return the logits before each token, shape [B, count, V].

    Args:
        choose: selects each row's token.
        shared: number of tokens that the second prompt shares with the first; their keys and values are copied.
    """
    rows = Rows(shape, max_rows=2 * len(prompts), max_bytes=0)
    sequence_rows = [rows.place(np.asarray(ids, np.int32), len(ids) + count, adapter) for ids in prompts]
    pieces = [Piece(row, 0, row.known) for row in sequence_rows]
    if shared:
        sequence_rows[1].depth = 1  # written after the first row, whose prefix it copies
        pieces[1] = Piece(sequence_rows[1], shared, sequence_rows[1].known - shared, sequence_rows[0])
    step_logits = []
    for turn in range(count):
        logits = _run_step(forward, shape, sequence_rows, pieces)
        step_logits.append(logits)
        for row, token in zip(sequence_rows, choose(turn, logits), strict=True):
            row.depth = 0
            row.append(token)
        pieces = [Piece(row, row.computed, 1) for row in sequence_rows]
    return torch.stack(step_logits, 1)


def _run_step(forward: Forward, shape: Shape, rows: list[Row], pieces: list[Piece]) -> Tensor:
    """Return the logits after each row's last token, shape [B, V]."""
    step = build_step(pieces, shape.device)
    index_of_row = {id(row): index for row, index in step.sampled}
    row_indices = torch.tensor([index_of_row[id(row)] for row in rows], dtype=torch.long, device=shape.device)
    logits = forward(step, step.ids, step.positions, row_indices)
    for piece in pieces:
        piece.row.computed = piece.row.planned = piece.start + piece.length
    return logits


PREFIX, LENGTHS, REPLY = 12, (19, 33, 7), 6
"""Token counts of the probe: shared prefix of the first two prompts, prompts, and replies."""
DRAWS = 3
"""Number of draws of probe tokens for types below float32.

An unlikely token can make rounding errors as large as a leak between rows, but not in every draw; a leak shows in each.
"""


def require_eager_agreement(model: Any, forward: Forward, shape: Shape, vocabulary: int) -> None:
    """Compare a few sequences with the model's eager forward pass over each sequence alone.

    Raises:
        UserError: the logits differ in every draw.
    """
    for seed in range(1 if shape.dtype == torch.float32 else DRAWS):
        rng = np.random.default_rng(seed)
        sequences = [rng.integers(0, vocabulary, size + REPLY) for size in LENGTHS]
        sequences[1][:PREFIX] = sequences[0][:PREFIX]
        if logits_match(*compute_both_logits(model, forward, shape, sequences), shape.dtype):
            return
    raise UserError(
        f"The transformers engine cannot sample {type(model).__name__}: its layers keep a recurrent state or use "
        "an attention of their own, so requests in one batch would change each other.",
        where="model.path",
        do="set rollout.engine: vllm, or use a model that docs/models.md lists",
    )


def compute_both_logits(model: Any, forward: Forward, shape: Shape, sequences: list[Any]) -> tuple[Tensor, Tensor]:
    """Return the logits of the sequences' last tokens by the engine and by the eager model, [B, REPLY, V] each."""
    decoded = decode_sequences(
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
    return decoded, torch.stack(plain)
