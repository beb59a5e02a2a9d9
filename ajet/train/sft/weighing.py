"""Lessons of a step to its batch, and held-out ones to their loss: what the objective asks the model for.

Invariant: log-probabilities come from the trainer's own forward pass, packed as in an update, at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.given_replies import TEMPERATURE, likelihood_batch, pairs_batch, samples_of
from ajet.backbone.contract import scored

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.batch import Sample, TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Group

SHOWN = ("loss", "dpo/accuracy", "dpo/margin")
"""Of held-out pairs."""


class Weighing:
    """Weighs lessons by the objective of `settings`, with the models that `backbone` has."""

    def __init__(self, settings: AjetConfig, backbone: Backbone) -> None:
        self._settings, self._backbone = settings, backbone
        self._pairs = settings.sft.objective == "dpo"

    def batch(self, groups: Sequence[Group], step: int) -> TrainingBatch:
        """The batch that an update trains on. Its metrics number the lessons."""
        if self._pairs:
            batch = pairs_batch(groups, self._settings, self._both, step=step)
        else:
            batch = likelihood_batch(groups, self._settings, step=step)
        batch.metrics["train/rows"] = len(groups)
        return batch

    def measured(self, groups: Sequence[Group]) -> dict[str, float]:
        """The loss of an update on all of them, per token or per pair, without one."""
        if self._pairs:
            found = self.batch(groups, step=0).metrics
            return {name: found[name] for name in SHOWN}
        samples = samples_of(groups)
        masks = [sample.timeline.mask for sample in samples]
        rows = zip(self._scored(samples), masks, strict=True)
        total = sum(-float(row[mask].sum(dtype=np.float64)) for row, mask in rows)
        return {"loss": total / max(1, sum(int(mask.sum()) for mask in masks))}

    def _both(self, samples: list[Sample]) -> tuple[list[Floats], list[Floats]]:
        return self._scored(samples), self._scored(samples, reference=True)

    def _scored(self, samples: list[Sample], *, reference: bool = False) -> list[Floats]:
        tokens = self._settings.trainer_common.micro_batch_tokens
        with self._backbone.scorer(reference=reference) as scorer:
            return scored(scorer, samples, tokens=tokens, temperature=TEMPERATURE)
