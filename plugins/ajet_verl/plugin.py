"""Descriptor of the package, read before the package is loaded."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_verl",
    about="the backbone `verl`: verl's trainer and servers on Ray",
    packages=("ray", "verl"),
    extra="verl",
    backbones={"verl": "ajet_verl.descriptor:VERL"},
)
