"""Describe the Trinity package for the plug-in registry, without loading its code."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_trinity",
    about="the backbone `trinity`: Trinity-RFT's explorer and trainer on Ray",
    packages=("ray",),
    extra="verl",
    backbones={"trinity": "ajet_trinity.config:TRINITY"},
)
