"""Ctrl-C that never tears a step apart.

Invariant: inside `held()` the first interrupt is kept until the block has ended; outside it is raised at once. A
second interrupt is raised wherever it arrives. None is lost: where Python cannot pass it on (in a finalizer, or what a
weak reference calls) it prints and forgets it, and the next block raises it instead.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Owns the SIGINT and SIGTERM handlers while a run goes on (a no-op outside the main thread)."""

    def __init__(self) -> None:
        self._holding = False
        self._pending = False
        self._raised = False

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Handle the signals within the block, restore the earlier handlers after it."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        earlier = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block a first interrupt waits; it is raised when the block ends. Raises KeyboardInterrupt before
        the block for one that was raised and that nobody has heard."""
        if self._raised:
            self._raised = False
            raise KeyboardInterrupt
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def heard(self) -> None:
        """For who caught an interrupt and goes on to further blocks."""
        self._raised = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holding and not self._pending:
            self._pending = True
            return
        self._raised = not self._holding
        raise KeyboardInterrupt
