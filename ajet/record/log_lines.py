"""How log lines look on the screen: short, a word before a warning.

Invariant: they pass through the one console that draws the progress bars, so neither tears the other apart. In a
program of somebody else's they take the place of loguru's own sink and of no other, and give it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ajet.record.log_sinks import Sink, give_first_back, take_first

COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


def shown_from(level: str) -> Sink:
    """Lines from `level` on are shown from now on, until the sink is closed."""
    from rich.text import Text

    from ajet.record.console import console

    def show(message: Any) -> None:
        name = message.record["level"].name
        text = str(message).rstrip("\n")
        label = f"{name.lower()}: " if name in COLOURS else ""
        console.print(Text.assemble((label, COLOURS.get(name, "")), text), soft_wrap=True)

    return Sink(show, level=level, format="{message}")


@contextmanager
def shown_in_a_program() -> Iterator[None]:
    """Within the block a Python program shows them as a command does, where nobody has said how log lines are to look:
    the sink that loguru begins with is still there."""
    if not take_first():  # the program has its own
        yield
        return
    sink = shown_from("INFO")
    try:
        yield
    finally:
        sink.close()
        give_first_back()
