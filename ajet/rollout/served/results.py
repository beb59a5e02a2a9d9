"""Results: what came of the desk's episodes, for the one thread that trains on it or records it.

Invariant: each result is taken once. Where the desk cannot keep its promises any more whoever takes results gets why
instead, now and from then on: behind an error nothing is taken as if all were well.
"""

from __future__ import annotations

import queue

from ajet.schema.episode import Episode, Group


class Results:
    """The results of one desk. Thread-safe; `qsize` also within a signal's handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Group | Episode | None] = queue.SimpleQueue()
        self._problem: Exception | None = None

    def put(self, result: Group | Episode) -> None:
        """Add one."""
        self._queue.put(result)

    def break_off(self, problem: Exception) -> None:
        """Nothing is given out any more."""
        self._problem = problem
        self._queue.put(None)  # for who waits

    def get(self, timeout: float | None = None) -> Group | Episode:
        """The next one. Raises queue.Empty after `timeout` seconds (None: never), and what the desk broke off with."""
        return self._taken(self._queue.get(timeout=timeout))

    def get_nowait(self) -> Group | Episode:
        """Get a result without waiting."""
        return self._taken(self._queue.get_nowait())

    def qsize(self) -> int:
        """How many wait."""
        return self._queue.qsize()

    def _taken(self, result: Group | Episode | None) -> Group | Episode:
        if result is None or self._problem is not None:
            self._queue.put(None)
            assert self._problem is not None
            raise self._problem
        return result
