"""The toy's engine, optimizer and second computation: those of the local backbone, counted."""

from __future__ import annotations

from dataclasses import replace

from ajet.backbone.local import LocalBackbone
from ajet.backbone.local.scorer import LocalScorer


class ToyBackbone(LocalBackbone):
    updates = 0

    def update(self, batch):
        self.updates += 1
        done = super().update(batch)
        return replace(done, metrics=done.metrics | {"toy_updates": self.updates})


class ToyScorer(LocalScorer):
    opened = 0

    def __init__(self, experiment, checkpoint=None):
        super().__init__(experiment, checkpoint)
        ToyScorer.opened += 1
