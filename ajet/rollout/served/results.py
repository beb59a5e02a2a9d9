"""Results of served episodes: for the thread that trains on them, and for clients that repeat a request.

Invariants: each result is taken once. After an error of the registry every `get` raises that error, so that no result
behind it is taken as if nothing had happened. A repeated request of a client gets the answer of the first, for the
newest MAX_REMEMBERED episodes; a reward that was ranked meanwhile is in it.
"""

from __future__ import annotations

import queue
from collections import Counter, OrderedDict
from typing import Any

from ajet.schema.episode import Episode, Group

MAX_REMEMBERED = 10_000
"""Ended episodes whose answers are stored for repeated requests."""


class ResultQueue:
    """Groups or episodes for the one thread that trains on or records them.

    Thread-safe; `qsize` also within a signal's handler.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Group | Episode | None] = queue.SimpleQueue()
        self._problem: Exception | None = None

    def put(self, result: Group | Episode) -> None:
        """Add a group or an episode."""
        self._queue.put(result)

    def fail(self, problem: Exception) -> None:
        """Return no further results: every call of `get` raises the problem."""
        self._problem = problem
        self._queue.put(None)  # wakes a caller that waits

    def get(self, timeout: float | None = None) -> Group | Episode:
        """Return the next result. Raises queue.Empty after `timeout` seconds, and the exception of `fail`."""
        return self._check_problem(self._queue.get(timeout=timeout))

    def get_nowait(self) -> Group | Episode:
        """Return a result without waiting. Raises as `get` does."""
        return self._check_problem(self._queue.get_nowait())

    def qsize(self) -> int:
        """Return the number of waiting results."""
        return self._queue.qsize()

    def _check_problem(self, result: Group | Episode | None) -> Group | Episode:
        if result is None or self._problem is not None:
            self._queue.put(None)
            assert self._problem is not None
            raise self._problem
        return result


class EndedEpisodes:
    """The ended episodes by name, as clients see them. Used on the registry's loop only."""

    def __init__(self) -> None:
        self._views: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.counts = Counter(completed=0, failed=0, aborted=0)
        """Ended episodes by status, with those that are no longer remembered."""

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._views[name]

    def remember(self, view: dict[str, Any], by: str) -> None:
        """Store an end as its client sees it. `by` names who ended it."""
        self._views[view["episode"]] = {**view, "ended_by": by}
        while len(self._views) > MAX_REMEMBERED:
            self._views.popitem(last=False)

    def replace(self, view: dict[str, Any]) -> None:
        """Replace the view of an episode that was ranked after its end."""
        self.counts["completed"] -= 1
        self.counts[view["status"]] += 1
        if view["episode"] in self._views:
            self._views[view["episode"]] = {**view, "ended_by": self._views[view["episode"]]["ended_by"]}
