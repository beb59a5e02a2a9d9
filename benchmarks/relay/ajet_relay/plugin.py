"""Name the backbone `relay`."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_relay",
    about="trains on replies encoded anew from their text, to measure what that costs",
    backbones={"relay": "ajet_relay.descriptor:RELAY"},
)
