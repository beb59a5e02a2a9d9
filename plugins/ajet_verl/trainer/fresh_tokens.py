"""The canary on verl: the step's own tokens, which engine and trainer have both scored.

Invariant: only tokens that the engine sampled with the weights that the trainer scores them with are compared.
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
    """Nats a token between the logprobs of `samples` and the trainer's [T] of each; None without a fresh token.

    `rows`: verl's extra fields of each sample's row. `at_least`: the policy version that fresh ones have, where
    the trainer may have moved on since the last hand-over; else 0, and the newest there are will do.
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
