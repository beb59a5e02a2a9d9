"""What ajet knows of this package before its code is loaded."""

from __future__ import annotations

from ajet.config.plugin import EXTENSIONS_PANEL, Command, Plugin

PLUGIN = Plugin(
    name="ajet_aworld",
    about="agents of AWorld, its AgentTrainer, and the names `train` and `env` of its pages",
    packages=("aworld",),
    extra="aworld",
    start="ajet_aworld.packages:install_finders",
    train_engines={
        "verl": "ajet_aworld.trainer.run_processor:VerlProcessor",
        "local": "ajet_aworld.trainer.run_processor:LocalProcessor",
        "debug": "ajet_aworld.trainer.run_processor:DebugProcessor",
        "trinity": "ajet_aworld.trainer.run_processor:TrinityProcessor",
    },
    commands={
        "aworld": Command(
            "ajet_aworld.command:app",
            "Manage the module names `train` and `env` that AWorld's pages import.",
            panel=EXTENSIONS_PANEL,
        )
    },
)
