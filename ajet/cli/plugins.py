"""Prints the list of plug-ins for `ajet plugins`."""

from __future__ import annotations


def plugins() -> int:
    """List what extends ajet: each plug-in, what it brings, and why something of it is missing."""
    from ajet.commands.plugins import show_plugins

    return show_plugins()
