"""What becomes of a companion that ends while the run goes on: it is started again, each time later than before.

Invariant: nothing is started once the run is over; what ended well, or too often in a row, stays as it is and is said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from loguru import logger

from ajet.schema.errors import UserError

LOOK_S = 0.5
STEADY_S = 60.0
"""After how long of being ready an end is no more one in a row."""
LONGEST_S = 60.0
"""Between an end and the next start; the first is after a second, each further one after twice as long."""


class Restartable(Protocol):
    """A process that can be started again."""

    name: str
    timeout: float
    """Seconds that it may take to be ready."""

    def is_over(self) -> bool: ...
    def has_succeeded(self) -> bool: ...
    def describe_exit(self) -> str: ...
    def is_ready(self) -> bool: ...
    def start_again(self) -> None: ...
    def close(self) -> None: ...


class Restarts:
    """The processes that run, each with how many times in a row it may be started again."""

    def __init__(self, running: Sequence[tuple[Restartable, int]]) -> None:
        self._watched = [Watched(each, most) for each, most in running]
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block a thread watches them."""
        thread = threading.Thread(target=self._watch, name="ajet-restarts", daemon=True)
        if self._watched:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            if self._watched:
                thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            for each in self._watched:
                if not self._over.is_set():  # another may have taken long to end
                    each.look(time.monotonic())


class Watched:
    """A process that is watched."""

    def __init__(self, companion: Restartable, most: int) -> None:
        self._companion, self._most = companion, most
        self._tried, self._began = 0, time.monotonic()
        self._due: float | None = None
        """When it is started again; None: it runs."""
        self._ready: float | None = self._began
        """Since when; None: not yet."""
        self._late = self._left = False

    def look(self, now: float) -> None:
        """Once in a while; `now` by a clock that only goes on."""
        if self._left:
            return
        try:
            self._look(now)
        except UserError as problem:
            self._leave(f"cannot be started again: {problem.what}")
        except OSError as problem:  # no process, no descriptor, no room, or its log is gone
            self._leave(f"cannot be looked after: {problem}")

    def _look(self, now: float) -> None:
        if self._due is not None:
            if now >= self._due:
                self._due, self._began, self._ready, self._late = None, now, None, False
                self._companion.start_again()
        elif self._companion.is_over():
            self._ended(now)
        elif self._ready is None and not self._late:
            if self._companion.is_ready():
                self._ready = now
                logger.info("the service {} is ready again", self._companion.name)
            elif now - self._began > self._companion.timeout:
                self._late = True
                logger.warning("the service {} is not ready in its time: it is ended", self._companion.name)
                self._companion.close()

    def _ended(self, now: float) -> None:
        if self._ready is not None and now - self._ready > STEADY_S:
            self._tried = 0
        if self._companion.has_succeeded() and not self._late:
            self._left = True  # it had nothing more to do
            logger.info("the service {} ended", self._companion.name)
        elif self._tried == self._most:
            self._leave(f"ended{self._companion.describe_exit()}, and is not started again (restarts: {self._most})")
        else:
            after = min(2.0**self._tried, LONGEST_S)
            self._tried += 1
            self._due = now + after
            which = f"{self._tried} of {self._most}"
            ended = f"the service {self._companion.name} ended{self._companion.describe_exit()}"
            logger.warning("{}; it is started again in {:g} s ({})", ended, after, which)

    def _leave(self, said: str) -> None:
        self._left = True
        logger.error("the service {} {}: what needs it fails from now on", self._companion.name, said)
