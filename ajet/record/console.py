"""The one console that ajet prints to, so that bars, lines and tables never tear each other apart."""

from __future__ import annotations

from rich.console import Console

console = Console(highlight=False)
"""Standard output: results, tables, bars."""
