"""Placeholder for a disabled third-party server: lists its tools by name, each answering with the reason.

Invariant: no tool has an effect.
"""

from __future__ import annotations

from .settings import Settings
from .tool import Function, ToolError


def tools(settings: Settings) -> list[Function]:
    """Return one stub for each tool name of the settings."""
    return [_make_stub(name) for name in settings.names]


def _make_stub(name: str) -> Function:
    """Return a tool of this name that always fails."""

    def tool() -> str:
        raise ToolError("this server is off")

    tool.__name__ = name
    return tool
