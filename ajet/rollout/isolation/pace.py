"""Pace: how many workers may be starting at once.

A worker's start is seconds of a processor, its imports, before it says anything. Two hundred that start at once are
ready no sooner than a few at a time: all of them late, with the memory of all, and whoever needs the machine meanwhile,
the gateway first, waits beside all of them. Invariant: at most `most` are in their start, each until it is heard or has
ended, or for STARTS_S: one that waits for something else than a processor holds up nobody for longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STARTS_S = 5.0
"""Seconds after which a start no longer counts."""
A_PROCESSOR = 2
"""Starts at once for each that this process may use: one of them reads files while another computes."""


class Pace:
    """The pace of one rollout's workers. Called from any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: dict[Start, float] = {}
        self._queue, self._changed = threading.Lock(), threading.Condition()

    @classmethod
    def of(cls, processors: int | None) -> Pace:
        """The pace for a machine of so many processors."""
        return cls(A_PROCESSOR * (processors or 1))

    def turn(self, instead: Callable[[], bool]) -> Start | None:
        """Wait for one's turn to start; None where `instead` says that there is something else to do. Who comes later
        than others waits behind them; `look` has it asked again."""
        with self._queue, self._changed:
            while not instead():
                if (left := self._full()) <= 0:
                    start = Start(self)
                    self._begun[start] = time.monotonic()
                    return start
                self._changed.wait(left)
        return None

    def look(self) -> None:
        """What `instead` says may have changed."""
        with self._changed:
            self._changed.notify_all()

    def _full(self) -> float:
        """Seconds until there is room, at most; 0: now."""
        late = time.monotonic() - STARTS_S
        self._begun = {start: begun for start, begun in self._begun.items() if begun > late}
        return 0.0 if len(self._begun) < self._most else min(self._begun.values()) - late

    def end(self, start: Start) -> None:
        """See Start."""
        with self._changed:
            if self._begun.pop(start, None) is not None:
                self._changed.notify_all()


class Start:
    """A worker's start."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._over = pace, False

    def over(self) -> None:
        """Count the start no longer: its worker was heard, or has ended. Idempotent."""
        if not self._over:
            self._over = True
            self._pace.end(self)
