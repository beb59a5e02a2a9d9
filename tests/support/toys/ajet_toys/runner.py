"""How the toy lays out its processes: in a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ajet.commands.runner import InProcessRunner
from ajet.schema.errors import ConfigError, Finding


class ToyRunner(InProcessRunner):
    def settings(self, experiment):
        settings, own = experiment.ajet.model_copy(deep=True), experiment.backbone_overrides.get("toy", {})
        if unknown := sorted(own.keys() - {"clip_high"}):
            raise ConfigError(f"A toy has no {unknown[0]}.", where=experiment.layers.locate(("toy", unknown[0])))
        settings.trainer_common.algorithm.clip_high = own.get("clip_high", 0.2)
        return settings

    def shown(self, experiment):
        return f"---\n# What the toy gets.\nclip_high: {self.settings(experiment).trainer_common.algorithm.clip_high}\n"

    def checkup(self, config, *, needed):
        return [Finding("toy", "ok", "needed" if needed else "there")] if needed else []

    def train(self, experiment, run, options, interrupts, sink):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(super().train, experiment, run, options, interrupts, sink).result()
