"""Tags in streamed text."""

from __future__ import annotations


def overlap(text: str, tag: str) -> int:
    """The number of characters at the end of `text` that may be the beginning of `tag`."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
