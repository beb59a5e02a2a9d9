"""The plug-in descriptor, readable without loading the package's code."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_harness",
    about="presets of coding agents (OpenCode, pi, Codex and others) for `command_agent.harness`",
)
