"""Values that are a known name or a reference to something of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches


def is_reference(text: str) -> bool:
    """Whether `text` has the form `file.py->Class` or `pkg.module:Class`."""
    left, arrow, right = text.rpartition("->")
    if not arrow:
        left, arrow, right = text.rpartition(":")
    return bool(arrow and left and right.strip().isidentifier())


def name_or_reference(names: Sequence[str], example: str) -> Callable[[str], str]:
    """A validator: one of `names`, or a reference such as `example`."""

    def check(text: str) -> str:
        if text in names or is_reference(text):
            return text
        near = get_close_matches(text, names, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"one of {', '.join(names)}, or a reference such as {example}{hint}")

    return check
