"""What ajet knows of the backbone before its code is loaded."""

from __future__ import annotations

from dataclasses import replace

from ajet.backbone.descriptors import LOCAL

RELAY = replace(
    LOCAL,
    name="relay",
    about="trains as local does, on replies encoded anew from their text",
    opens="ajet_relay.backbone:RelayBackbone",
)
