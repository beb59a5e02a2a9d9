"""Frames: a JSON object and byte strings, over a stream; the same code on both sides.

Invariant: sizes are bounded before a byte of them is kept; what arrives is data and is never executed or unpickled.
Eight bytes of lengths (of the JSON, of all bytes), the JSON, the bytes; `blobs` in the JSON says how they are split.
Sandboxes run this file on other Pythons: it imports the standard library alone.
"""

from __future__ import annotations

import os

LONGEST_HEAD = 1 << 20
"""Bytes of JSON in one frame."""


class BadFrame(ValueError):
    """The stream holds something else."""


def packed(head: dict, *blobs: bytes) -> bytes:
    """One frame."""
    import json  # takes longer than all else that a sandbox starts with

    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    rest = b"".join(blobs)
    return len(text).to_bytes(4, "big") + len(rest).to_bytes(4, "big") + text + rest


class Frames:
    """The frames that arrive over a stream; `feed` bytes, `take` frames."""

    def __init__(self, longest: int) -> None:
        """`longest`: bytes beside the JSON that one frame may hold."""
        self._longest = longest
        self._held = bytearray()

    def feed(self, more: bytes) -> None:
        """What was read."""
        self._held += more

    def take(self) -> tuple[dict, list[bytes]] | None:
        """The next frame; None while it is not whole. Raises BadFrame."""
        if len(self._held) < 8:
            return None
        text, rest = int.from_bytes(self._held[:4], "big"), int.from_bytes(self._held[4:8], "big")
        if text > LONGEST_HEAD or rest > self._longest:
            raise BadFrame(f"a frame of {text} and {rest} bytes")
        if len(self._held) < 8 + text + rest:
            return None
        frame = bytes(self._held[8 : 8 + text + rest])
        del self._held[: 8 + text + rest]
        return _parsed(frame[:text], frame[text:])


def _parsed(text: bytes, rest: bytes) -> tuple[dict, list[bytes]]:
    import json

    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame("no JSON") from error
    sizes = head.get("blobs") if isinstance(head, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise BadFrame("no sizes")
    if sum(sizes) != len(rest):
        raise BadFrame("sizes that do not add up")
    blobs, at = [], 0
    for size in sizes:
        blobs.append(rest[at : at + size])
        at += size
    return head, blobs


def send(number: int, frame: bytes) -> None:
    """All of it, to a blocking descriptor."""
    view = memoryview(frame)
    while view:
        view = view[os.write(number, view) :]
