"""Ctrl-C that never tears a step apart, and SIGTERM that lets it end.

Invariant: inside `held()` the first interrupt is kept until the block has ended; outside it is raised at once. A
second interrupt is raised wherever it arrives. None is lost: where Python cannot pass it on (in a finalizer, or what a
weak reference calls) it prints and forgets it, and the next block raises it instead. SIGTERM, by which batch systems
take a machine away, is raised as `Preempted`: inside `patient()` when what is being played has been held, or after the
block, or when its time is over, whichever is first. Looks at what others play (`held(whole=False)`) end no wait.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from loguru import logger

from ajet.store.outage import interruptible

GLANCE_S = 0.1
"""Between two looks whether it is still worth waiting."""


class Preempted(KeyboardInterrupt):
    """The machine is taken away: the run is to be started again elsewhere."""


class Interrupts:
    """Owns the SIGINT and SIGTERM handlers while a run goes on (a no-op outside the main thread)."""

    def __init__(self) -> None:
        self._holding, self._whole = False, True
        self._asked: float | None = None
        """When the first SIGTERM came."""
        self._pending: type[KeyboardInterrupt] | None = None
        self._raised: type[KeyboardInterrupt] | None = None
        self._patience = 0.0
        self._worth: Callable[[], bool] | None = None
        self._waiting: threading.Event | None = None
        """While a SIGTERM waits; set when it no longer does."""

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Handle the signals within the block, restore the earlier handlers after it."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        earlier = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with interruptible(self._raise_kept):
                yield self
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self, *, whole: bool = True) -> Iterator[None]:
        """Within the block a first interrupt waits; it is raised when the block ends. Raises KeyboardInterrupt before
        the block for one that was raised and that nobody has heard. `whole` False: the block is one look of many, and
        a SIGTERM that waits in `patient` goes on waiting after it."""
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        self._holding, self._whole = True, whole
        try:
            yield
        finally:
            self._holding = False
        if self._pending is not None and (whole or self._waiting is None):
            raise self._taken()

    @contextmanager
    def patient(self, seconds: float, worth: Callable[[], bool] | None = None) -> Iterator[None]:
        """Within the block a first SIGTERM waits for the end of the next `held`, or of the block, at most so long, and
        only while `worth` says that something may come of it (None: always)."""
        self._patience, self._worth = seconds, worth
        try:
            yield
        finally:
            self._patience, self._worth, waited = 0.0, None, self._over()
        if waited and self._pending is not None:
            raise self._taken()

    def left(self, seconds: float) -> float | None:
        """The seconds left of so many after the first SIGTERM; None: there was none."""
        return None if self._asked is None else max(0.0, self._asked + seconds - time.monotonic())

    def heard(self) -> None:
        """For who caught an interrupt and goes on to further blocks."""
        self._raised = None

    def _raise_kept(self) -> None:
        """Raise what `held` keeps, before its block ends: the block waits for a store that may never come back."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._pending is not None and self._waiting is None:
            raise self._taken()

    def _taken(self) -> type[KeyboardInterrupt]:
        pending, self._pending = self._pending, None
        self._over()
        return pending or KeyboardInterrupt

    def _over(self) -> bool:
        """End the wait; whether there was one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()
        return waiting is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        kind = Preempted if number == signal.SIGTERM else KeyboardInterrupt
        if kind is Preempted and self._asked is None:
            self._asked = time.monotonic()
        if self._pending is None:
            if self._holding and self._whole:
                self._pending = kind
                return
            if kind is Preempted and self._patience and (self._worth is None or self._worth()):
                self._pending, self._waiting = kind, threading.Event()
                logger.warning("asked to end: what ends within {:g} s is kept", self._patience)
                about = (self._waiting, self._patience, self._worth)
                threading.Thread(target=_count_down, args=about, daemon=True).start()
                return
            if self._holding:
                self._pending = kind
                return
        elif self._waiting and self._holding and kind is Preempted:
            if not self._whole:
                self._over()  # raised when the look ends
            return  # its time is over while the step is being held: the step is whole in a moment
        self._raised = kind if not self._holding else None
        self._pending = None
        self._over()
        raise kind


def _count_down(over: threading.Event, seconds: float, worth: Callable[[], bool] | None) -> None:
    """Send the signal again when the time is over, or nothing more can come."""
    until, main = time.monotonic() + seconds, threading.main_thread()
    while time.monotonic() < until and (worth is None or worth()):
        if over.wait(GLANCE_S):
            return
    if not over.is_set() and main.ident is not None:
        signal.pthread_kill(main.ident, signal.SIGTERM)
