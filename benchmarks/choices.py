"""What a benchmark is asked for by name.

Invariant: a name that it does not have is refused: it would measure nothing, or another thing by that name, and of what
is not measured no limit is missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable


def some_of(*known: str) -> Callable[[str], list[str]]:
    """The type of an argument: some of these names, with commas between."""

    def read(text: str) -> list[str]:
        named = text.split(",")
        if unknown := [each for each in named if each not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(map(repr, unknown))} is none of {', '.join(known)}")
        return named

    return read
