"""The toy's engine: the transformers engine, counted."""

from __future__ import annotations

from ajet.engine.drivers import TransformersDriver


class ToyDriver(TransformersDriver):
    opened = 0

    def open_trained(self, config, source, model, weights, verdicts):
        ToyDriver.opened += 1
        return super().open_trained(config, source, model, weights, verdicts)
