"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import JUDGES_PANEL, Command, Plugin

PLUGIN = Plugin(
    name="ajet_gepa",
    about="`ajet optimize-prompt`: GEPA rewrites the agent's prompt, the baseline for training",
    packages=("gepa",),
    extra="gepa",
    commands={
        "optimize-prompt": Command(
            "ajet_gepa.cli:optimize_prompt",
            "Optimize the agent's prompt by a reflecting model (GEPA), and compare it on held-out tasks.",
            panel=JUDGES_PANEL,
        )
    },
)
