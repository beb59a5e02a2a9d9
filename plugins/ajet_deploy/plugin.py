"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import MAIN_PANEL, Command, Plugin

PLUGIN = Plugin(
    name="ajet_deploy",
    about="the tuned model of a run: served to any client, or in a conversation",
    commands={
        "chat": Command("ajet_deploy.cli.chat:chat", "Chat with the model that a run has trained.", panel=MAIN_PANEL),
        "deploy": Command(
            "ajet_deploy.cli.deploy:deploy",
            "Serve the model that a run has trained, with OpenAI's and Anthropic's protocols.",
            panel=MAIN_PANEL,
        ),
    },
)
