"""Descriptor of the package, read before the package is loaded."""

from __future__ import annotations

from ajet.config.plugin import Plugin

PLUGIN = Plugin(
    name="ajet_gaia",
    about="tool servers by the names that agents of AWorld's GAIA environment know",
    environment_files={
        "gaia-local": "ajet_gaia.deployment:GAIA_LOCAL",
        "gaia-mcp-server": "ajet_gaia.deployment:GAIA_LOCAL",  # AWorld uses this name
    },
    environment_families={"gaia": "ajet_gaia.deployment:FAMILY"},
)
