"""Waits while a store is unreachable, such as a server without an answer or an unmounted network folder.

Invariant: all threads of a process share one outage, logged once at the start and once at the end. The patience is the
time for which operations are repeated. When it is over, each waiting operation raises StoreUnreachableError, and later
operations are tried once. An operation may have succeeded although its answer was lost, so the caller decides if a
repeat is safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from loguru import logger

from ajet.store.contract import StoreUnreachableError

UNREACHABLE_TIMEOUT = 600.0  # default of `store.unreachable_timeout` in seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two tries; each pause doubles the previous pause."""
GLANCE = 0.1
"""Seconds between two checks for an interrupt of the wait."""
LOGGED_AFTER = 3.0
"""Shorter outages in seconds, such as the election of a primary, are not logged."""
_limit: ContextVar[float | None] = ContextVar("store_patience", default=None)
INTERRUPT_RAISER: ContextVar[Callable[[], None] | None] = ContextVar("store_interrupt_raiser", default=None)
"""Called between the tries of an operation. An exception that it raises ends the operation, and later operations are
tried once, as after `patience` seconds."""
T = TypeVar("T")


@contextmanager
def limited_patience(seconds: float) -> Iterator[None]:
    """Limit the wait of operations within the block, also in `asyncio.to_thread` threads."""
    token = _limit.set(seconds)
    try:
        yield
    finally:
        _limit.reset(token)


def patience_limit() -> float | None:
    """Return the seconds for which the present block limits waiting, or None for the store's own patience."""
    return _limit.get()


class Outage:
    """Tracks whether one process's store is unreachable, and repeats operations meanwhile. Thread-safe."""

    def __init__(self, shown: str, patience: float) -> None:
        """Track one store.

        Args:
            shown: The store's address in messages.
            patience: Seconds to wait; may be changed later.
        """
        self.patience = patience
        self._shown_address = shown
        self._lock, self._is_closing = threading.Lock(), threading.Event()
        self._outage_start: float | None = None
        """Start of the first failed operation since the last success, by `time.monotonic`."""
        self._is_logged = self._has_given_up = False
        self._last_outage_end = float("-inf")
        """End of the last logged outage."""

    @property
    def is_closing(self) -> bool:
        """True once the process has closed the store. Operations are not repeated any more."""
        return self._is_closing.is_set()

    def close(self) -> None:
        """End all waits for the store, because the process closes the store."""
        self._is_closing.set()

    def ended_within(self, seconds: float) -> bool:
        """Return True if an outage lasts, or ended less than `seconds` ago.

        Only outages long enough to be logged count. The caller then ends no lease, since processes could not renew
        their leases during the outage.
        """
        return self._is_logged or time.monotonic() - self._last_outage_end < seconds

    def outlast(self, operation: Callable[[], T]) -> T:
        """Call the operation and return its result. Repeat it on StoreUnreachableError until the patience is over."""
        started, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                result = operation()
            except StoreUnreachableError:
                if not self._may_wait(started, pause) or self._wait_for_retry(pause):
                    raise
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                # A slow answer counts as an outage, too: leases could not be renewed meanwhile.
                if self._outage_start is not None or time.monotonic() - started > LOGGED_AFTER:
                    self._note_back()
                return result

    def _wait_for_retry(self, seconds: float) -> bool:
        """Wait `seconds` until the next try of an operation. Return True if the process closed the store meanwhile.

        An exception of the caller's INTERRUPT_RAISER ends the wait, and later operations are tried once.
        """
        raise_interrupt, deadline = INTERRUPT_RAISER.get(), time.monotonic() + seconds
        while True:
            if raise_interrupt is not None:
                try:
                    raise_interrupt()
                except BaseException:
                    self._has_given_up = True
                    raise
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._is_closing.wait(min(remaining, GLANCE)):
                return self._is_closing.is_set()

    def _may_wait(self, started_at: float, pause: float) -> bool:
        """Return True if an operation may be repeated after a pause.

        The first failed operation starts the outage. An outage of more than LOGGED_AFTER seconds is logged once.

        Args:
            started_at: Monotonic time of the operation's first try.
            pause: Seconds until the next try.
        """
        now, limit = time.monotonic(), _limit.get()
        with self._lock:
            self._outage_start = started_at if self._outage_start is None else self._outage_start
            if not self._is_logged and now - self._outage_start > LOGGED_AFTER:
                self._is_logged = True
                remaining = max(0.0, self._outage_start + self.patience - now)
                logger.warning(
                    "the store {} cannot be reached: ajet retries for up to {:.0f} s", self._shown_address, remaining
                )
            if limit is not None and now + pause > started_at + limit:  # the limit of the caller's `limited_patience`
                return False
            if self._has_given_up or now + pause > min(started_at, self._outage_start) + self.patience:
                self._has_given_up = True
                return False
            return True

    def _note_back(self) -> None:
        """End the outage after a successful operation, and log its end if its start was logged."""
        with self._lock:
            if self._outage_start is None:  # the store answered late: leases could not be renewed meanwhile either
                self._last_outage_end = time.monotonic()
                return
            if self._is_logged:
                self._last_outage_end = time.monotonic()
                logger.warning(
                    "the store {} can be reached again after {:.0f} s",
                    self._shown_address,
                    self._last_outage_end - self._outage_start,
                )
            self._outage_start = None
            self._is_logged = False
            self._has_given_up = False
