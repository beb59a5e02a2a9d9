"""Restarts of companions that end during a run, each later than the one before.

Invariant: nothing is started once the run is over. A companion with exit code 0, or with too many failures in a row,
stays ended, and a log line says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from loguru import logger

from ajet.schema.errors import UserError

POLL_S = 0.5
STEADY_S = 60.0
"""Seconds of readiness after which the count of failures starts again at 0."""
LONGEST_S = 60.0
"""Longest delay before a restart; the first is one second, each further one twice as long."""


class Restartable(Protocol):
    """A process with a readiness check that can be restarted."""

    name: str
    timeout: float
    """Seconds until the process must be ready."""

    def is_over(self) -> bool: ...
    def has_succeeded(self) -> bool: ...
    def describe_exit(self) -> str: ...
    def is_ready(self) -> bool: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class RestartWatcher:
    """Watches processes, each with its number of restarts in a row."""

    def __init__(self, running: Sequence[tuple[Restartable, int]]) -> None:
        self._processes = [WatchedProcess(each, most) for each, most in running]
        self._over = threading.Event()

    @contextmanager
    def run_watcher(self) -> Iterator[None]:
        """Watch the processes in a thread within the block."""
        thread = threading.Thread(target=self._watch_processes, name="ajet-restarts", daemon=True)
        if self._processes:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            if self._processes:
                thread.join()

    def _watch_processes(self) -> None:
        while not self._over.wait(POLL_S):
            for each in self._processes:
                if not self._over.is_set():  # another may have taken long to end
                    each.check_process(time.monotonic())


class WatchedProcess:
    """The restart state of one process."""

    def __init__(self, companion: Restartable, most: int) -> None:
        self._companion, self._max_restarts = companion, most
        self._restarts, self._started_at = 0, time.monotonic()
        self._restart_at: float | None = None
        """Time of the next restart; None while the process runs."""
        self._ready_since: float | None = self._started_at
        """Time of the first readiness; None until then."""
        self._is_late = self._has_given_up = False

    def check_process(self, now: float) -> None:
        """Check the process once; `now` is from a monotonic clock."""
        if self._has_given_up:
            return
        try:
            self._update_state(now)
        except UserError as problem:
            self._give_up(f"cannot be started again: {problem.what}")
        except OSError as problem:  # no process, no descriptor, no room, or its log is gone
            self._give_up(f"cannot be supervised any more: {problem}")

    def _update_state(self, now: float) -> None:
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at, self._started_at, self._ready_since, self._is_late = None, now, None, False
                self._companion.restart()
        elif self._companion.is_over():
            self._handle_end(now)
        elif self._ready_since is None and not self._is_late:
            if self._companion.is_ready():
                self._ready_since = now
                logger.info("the service {} is ready again", self._companion.name)
            elif now - self._started_at > self._companion.timeout:
                self._is_late = True
                logger.warning("the service {} was not ready in time, so ajet stops it", self._companion.name)
                self._companion.close()

    def _handle_end(self, now: float) -> None:
        if self._ready_since is not None and now - self._ready_since > STEADY_S:
            self._restarts = 0
        if self._companion.has_succeeded() and not self._is_late:
            self._has_given_up = True  # the service has finished its work, so it is not restarted
            logger.info("the service {} has ended", self._companion.name)
        elif self._restarts == self._max_restarts:
            self._give_up(
                f"ended{self._companion.describe_exit()}, and is not started again (restarts: {self._max_restarts})"
            )
        else:
            after = min(2.0**self._restarts, LONGEST_S)
            self._restarts += 1
            self._restart_at = now + after
            which = f"{self._restarts} of {self._max_restarts}"
            ended = f"the service {self._companion.name} ended{self._companion.describe_exit()}"
            logger.warning("{}; ajet starts it again in {:g} s ({})", ended, after, which)

    def _give_up(self, reason: str) -> None:
        self._has_given_up = True
        logger.error("the service {} {}: episodes that need it fail from now on", self._companion.name, reason)
