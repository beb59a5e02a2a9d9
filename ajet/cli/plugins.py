"""Prints the list of plug-ins for `ajet plugins`."""

from __future__ import annotations


def plugins() -> int:
    """List the plug-ins, what each adds to ajet, and why parts of it are missing."""
    from ajet.commands.plugins import show_plugins

    return show_plugins()
