"""The one console that ajet prints to, so that bars, lines and tables never tear each other apart."""

from __future__ import annotations

from rich.console import Console

console = Console(highlight=False)
"""Standard output: results, tables, bars."""


def counted(count: int, thing: str) -> str:
    """So many things: "1 call", "2 calls"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
