"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import REMOTE_PANEL, Command, Plugin

PLUGIN = Plugin(
    name="ajet_observe",
    about="`ajet observe`: a proxy that records a deployed agent's calls and the feedback of its users",
    commands={
        "observe": Command(
            "ajet_observe.cli:observe",
            "Record a deployed agent's model calls and the feedback of its users.",
            panel=REMOTE_PANEL,
        )
    },
)
