"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_trl",
    about="AgentTrainer's engine `trl`: TRL's GRPOTrainer trains on ajet's episodes",
    train_engines={"trl": "ajet_trl:TrlTrainer"},
)
