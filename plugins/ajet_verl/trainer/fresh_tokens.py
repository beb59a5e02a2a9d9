"""The canary on verl: compares engine and trainer on the step's own tokens.

Invariant: only tokens sampled with the trainer's current weights are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ajet.backbone.canary import compute_gap
from ajet.schema.batch import Sample
from ajet.schema.call import Floats


def measure_canary_gap(
    samples: Sequence[Sample], trainer: Sequence[Floats], rows: Sequence[Mapping[str, Any]], *, at_least: int
) -> float | None:
    """Return the gap in nats per token between engine and trainer, or None without a fresh token.

    Args:
        trainer: the trainer's log-probabilities of each sample, [T].
        rows: verl's extra fields of each sample's row.
        at_least: minimum policy version of fresh tokens, if the trainer may be ahead of the servers; 0 accepts the
            newest version present.
    """
    newest = max((int(row["max_global_steps"]) for row in rows), default=-1)
    fresh = [
        (sample.timeline.logprobs[sample.timeline.mask], own[sample.timeline.mask])
        for sample, own, row in zip(samples, trainer, rows, strict=True)
        if row["min_global_steps"] == newest >= at_least
    ]
    if not fresh:
        return None
    return compute_gap(*(np.concatenate(parts) for parts in zip(*fresh, strict=True)))
