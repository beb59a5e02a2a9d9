"""How log lines look on the screen.

Invariant: they pass through the one console that draws the progress bars, so neither tears the other apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.record.sinks import Sink

_shown: Sink | None = None


def show_logs(level: str = "INFO") -> None:
    """Show log lines from `level` on, short; the log file keeps everything."""
    from loguru import logger
    from rich.text import Text

    from ajet.record.console import console
    from ajet.record.sinks import Sink

    colours = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}

    def show(message: Any) -> None:
        name = message.record["level"].name
        text = str(message).rstrip("\n")
        label = f"{name.lower()}: " if name in colours else ""
        console.print(Text.assemble((label, colours.get(name, "")), text), soft_wrap=True)

    global _shown
    if _shown is not None:
        _shown.close()
    logger.remove()
    _shown = Sink(show, level=level, format="{message}")


def warn(text: str) -> None:
    """One line of warning."""
    from loguru import logger

    logger.warning(text)


@contextmanager
def beside_json(wanted: bool) -> Iterator[None]:
    """Within the block, if `wanted`, whatever is shown goes to standard error: standard output is for JSON."""
    from ajet.record.console import console

    before, console.stderr = console.stderr, wanted or console.stderr
    try:
        yield
    finally:
        console.stderr = before
