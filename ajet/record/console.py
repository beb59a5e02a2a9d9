"""The one console that ajet prints to, so that bars, lines and tables never tear each other apart.

Invariant: what a model, a client or a file of somebody else says reaches no terminal as anything but text: characters
that a terminal would obey, or that turn the direction of writing, are shown as �, whoever prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """`text` without characters that a terminal would obey."""
    return _OBEYED.sub("�", text)


def printable(text: str) -> str:
    """The same, and without any that cannot be seen: for the words of a model."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


class Screen(Console):
    """A console that obeys nobody but the program."""

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """See rich."""
        for segment in super().render(*args, **kwargs):
            if segment.control or not _OBEYED.search(segment.text):
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


console = Screen(highlight=False)
"""Standard output: results, tables, bars."""


def counted(count: int, thing: str) -> str:
    """So many things: "1 call", "2 calls"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
