"""What ajet knows of this package before its code is loaded."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="toy", about="a backbone that counts its updates", backbones={"toy": "toy_backbone.descriptor:TOY"}
)
