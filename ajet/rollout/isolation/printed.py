"""What a worker prints: a pipe whose last bytes are kept.

Invariant: however much is written, no more than the bound is held, and nothing lies on a disk; the writer is never
kept waiting by the rollout, only by the thread that reads here.
"""

from __future__ import annotations

import os
import select
import threading
import time

from ajet.rollout import bounds

KEPT = 4 * bounds.PRINTED
"""Bytes held: as many as the characters kept may need."""
PART = 1 << 16
PAUSE = 0.02
"""Seconds between two looks at a pipe that is not filling up."""


class Printed:
    """The reading end. Thread-safe."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self._lock = threading.Lock()
        self._last = bytearray()
        self._dropped = 0
        self._open = True

    def begin(self) -> None:
        """The writer has its own copy of the other end: read until every copy is closed."""
        os.close(self.theirs)
        threading.Thread(target=self._read_on, name="ajet-printed", daemon=True).start()

    def text(self) -> str:
        """The end of what was written up to now."""
        self._read()
        with self._lock:
            said = self._last.decode(errors="replace")
            return bounds.ending(said, bounds.PRINTED, before=self._dropped, unit="bytes")

    def forget(self) -> None:
        """Begin anew for the next attempt."""
        self._read()
        with self._lock:
            self._last.clear()
            self._dropped = 0

    def _read_on(self) -> None:
        ready = select.poll()
        ready.register(self._ours, select.POLLIN)
        while self._open:
            ready.poll()
            if self._read() < PART // 2:
                time.sleep(PAUSE)
        os.close(self._ours)

    def _read(self) -> int:
        """Take in what is there, at most one pipe full; answers how many bytes that was."""
        taken = 0
        with self._lock:
            while self._open and taken < PART:
                try:
                    part = os.read(self._ours, PART)
                except BlockingIOError:
                    break
                self._open = bool(part)
                taken += len(part)
                self._last += part
                over = len(self._last) - KEPT
                if over > 0:
                    del self._last[:over]
                    self._dropped += over
        return taken
