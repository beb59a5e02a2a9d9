"""Samples to their log-probabilities under a scorer's model: the one road of reference, canary, proof and update.

Invariant: rows are packed as an update packs them, so that the same weights give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.context_tracker.packing import pack, placed
from ajet.schema.batch import Sample
from ajet.schema.call import Floats

if TYPE_CHECKING:
    from ajet.backbone.contract import Scorer


def scored(scorer: Scorer, samples: Sequence[Sample], *, tokens: int, temperature: float) -> list[Floats]:
    """[T] per sample, where its mask is 1, else 0. `tokens`: of a row, as `micro_batch_tokens` says."""
    rows = pack(samples, tokens, share_prefixes=scorer.shares_prefixes)
    return placed(samples, rows, [scorer.logprobs(row, temperature) for row in rows])
