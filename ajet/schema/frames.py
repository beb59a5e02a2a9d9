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
    """The bytes of a stream are no valid frame: too large, no JSON, or sizes that do not add up."""


def pack_frame(head: dict, *blobs: bytes) -> bytes:
    """Return a frame of a JSON object and byte strings, for `FrameReader`.

    Layout: 4 bytes with the length of the JSON, 4 bytes with the length of all blobs, the JSON with the blobs' sizes
    under the key `blobs`, the blobs.
    """
    import json  # takes longer than all else that a sandbox starts with

    head_bytes = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    blob_bytes = b"".join(blobs)
    return len(head_bytes).to_bytes(4, "big") + len(blob_bytes).to_bytes(4, "big") + head_bytes + blob_bytes


class FrameReader:
    """Collects the bytes of a stream and splits them into the frames that `pack_frame` made."""

    def __init__(self, limit: int) -> None:
        """Args:
        limit: limit on the bytes of a frame, not counting the JSON.
        """
        self._max_frame_bytes = limit
        self._buffer = bytearray()

    def feed(self, more: bytes) -> None:
        """Add bytes that arrived from the stream, with any part of a frame."""
        self._buffer += more

    def take_frame(self) -> tuple[dict, list[bytes]] | None:
        """Return (head, blobs) of the next frame, or None while it is incomplete.

        Raise FrameError for an invalid frame.
        """
        if len(self._buffer) < 8:
            return None
        head_length, blob_length = int.from_bytes(self._buffer[:4], "big"), int.from_bytes(self._buffer[4:8], "big")
        if head_length > MAX_HEAD_BYTES or blob_length > self._max_frame_bytes:
            raise FrameError(f"a message with {head_length} bytes of text and {blob_length} bytes of data is too large")
        if len(self._buffer) < 8 + head_length + blob_length:
            return None
        frame = bytes(self._buffer[8 : 8 + head_length + blob_length])
        del self._buffer[: 8 + head_length + blob_length]
        return _parse_frame(frame[:head_length], frame[head_length:])


def _parse_frame(text: bytes, rest: bytes) -> tuple[dict, list[bytes]]:
    """Return (head, blobs) of a frame. Raise FrameError if the sizes in its JSON do not fit its bytes."""
    import json

    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError("the head of the message is not JSON") from error
    sizes = head.get("blobs") if isinstance(head, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise FrameError("a message between two processes is damaged: its head has no valid list of sizes")
    if sum(sizes) != len(rest):
        raise FrameError("the sizes in the message do not add up")
    blobs, offset = [], 0
    for size in sizes:
        blobs.append(rest[offset : offset + size])
        offset += size
    return head, blobs


def send_all(number: int, frame: bytes) -> None:
    """Write all bytes of a frame to the blocking file descriptor `number`."""
    unsent = memoryview(frame)
    while unsent:
        unsent = unsent[os.write(number, unsent) :]
