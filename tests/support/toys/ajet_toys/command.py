"""A command with an argument."""

from __future__ import annotations


def toy(number: int = 3) -> int:
    """Count to a number."""
    print(*range(1, number + 1))
    return 0
