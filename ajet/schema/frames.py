"""Frames: a JSON object and byte strings over a stream. Both sides run the same code.

Invariant: sizes are checked before a byte is stored. Data is never executed or unpickled. Layout: eight bytes of
lengths (of the JSON, of all bytes), the JSON, the bytes; `blobs` in the JSON gives the split. Sandboxes run the file on
other Pythons, so only the standard library is imported.
"""

from __future__ import annotations

import os

MAX_HEAD_BYTES = 1 << 20
"""Limit on the JSON of a frame."""


class FrameError(ValueError):
    """The stream holds no valid frame."""


def pack_frame(head: dict, *blobs: bytes) -> bytes:
    import json  # takes longer than all else that a sandbox starts with

    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    rest = b"".join(blobs)
    return len(text).to_bytes(4, "big") + len(rest).to_bytes(4, "big") + text + rest


class FrameReader:
    """Collects bytes of a stream and returns complete frames."""

    def __init__(self, limit: int) -> None:
        """Args:
        limit: limit on the bytes of a frame, not counting the JSON.
        """
        self._max_frame_bytes = limit
        self._buffer = bytearray()

    def feed(self, more: bytes) -> None:
        """Add bytes from the stream."""
        self._buffer += more

    def take_frame(self) -> tuple[dict, list[bytes]] | None:
        """Return the next frame, or None while incomplete. Raise FrameError for an invalid frame."""
        if len(self._buffer) < 8:
            return None
        text, rest = int.from_bytes(self._buffer[:4], "big"), int.from_bytes(self._buffer[4:8], "big")
        if text > MAX_HEAD_BYTES or rest > self._max_frame_bytes:
            raise FrameError(f"a message with {text} bytes of text and {rest} bytes of data is too large")
        if len(self._buffer) < 8 + text + rest:
            return None
        frame = bytes(self._buffer[8 : 8 + text + rest])
        del self._buffer[: 8 + text + rest]
        return _parse_frame(frame[:text], frame[text:])


def _parse_frame(text: bytes, rest: bytes) -> tuple[dict, list[bytes]]:
    import json

    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("no JSON") from error
    sizes = head.get("blobs") if isinstance(head, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise FrameError("no sizes")
    if sum(sizes) != len(rest):
        raise FrameError("the sizes in the message do not add up")
    blobs, offset = [], 0
    for size in sizes:
        blobs.append(rest[offset : offset + size])
        offset += size
    return head, blobs


def send_all(number: int, frame: bytes) -> None:
    """Write all bytes to a blocking descriptor."""
    view = memoryview(frame)
    while view:
        view = view[os.write(number, view) :]
