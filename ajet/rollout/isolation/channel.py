"""Channel: messages between the rollout and a worker over a stream of bytes, which a socket, a pipe or a container's
standard input and output can be.

Invariant: one frame a message (the sandbox's frames: lengths, a head, bytes), whose size is bounded before a byte of it
is kept; the head says which attempt it is about and its kind, the bytes are JSON (`values`).
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ajet.rollout.isolation.values import decoded
from ajet.schema.frames import BadFrame, Frames, packed, send

LONGEST = 1 << 28
"""Bytes of one message: a longer output fails its episode."""
_PIECE = 1 << 16


class Message(NamedTuple):
    """A message between the two sides."""

    about: int
    """The number of its attempt."""
    kind: str
    body: Any


class Channel:
    """One end of a channel, by the descriptors that it reads and writes; it closes neither. One reader and one writer
    at a time."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._frames = Frames(LONGEST)

    def send(self, about: int, kind: str, body: bytes) -> None:
        """`body`: as `values.encoded` makes it. Raises OSError when the other end is gone."""
        send(self._writes, packed({"about": about, "kind": kind}, body))

    def receive(self) -> Message:
        """The next one. Raises EOFError or OSError when the other end is gone, ValueError for what is no message."""
        while (frame := self._frames.take()) is None:
            more = os.read(self._reads, _PIECE)
            if not more:
                raise EOFError
            self._frames.feed(more)
        head, blobs = frame
        about, kind = head.get("about"), head.get("kind")
        if type(about) is not int or not isinstance(kind, str) or len(blobs) != 1:
            raise BadFrame("no message")
        return Message(about, kind, decoded(blobs[0]))
