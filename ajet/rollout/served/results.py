"""Results of served episodes, for the training thread and for clients that repeat a request.

Invariants: each result is taken once. After an error of the registry every `get` raises the error, and hides later
results. A client's repeated request gets the first reply, for the newest MAX_REMEMBERED episodes. If the reward was
ranked meanwhile, the reply contains the ranked reward.
"""

from __future__ import annotations

import queue
from collections import Counter, OrderedDict
from typing import Any

from ajet.schema.episode import Episode, Group

MAX_REMEMBERED = 10_000
"""Maximum number of ended episodes with stored replies for repeated requests."""


class ResultQueue:
    """Groups or episodes for the single training or recording thread.

    Thread-safe. `qsize` may be called within a signal handler.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Group | Episode | None] = queue.SimpleQueue()
        self._problem: Exception | None = None

    def put(self, result: Group | Episode) -> None:
        """Add a group or an episode."""
        self._queue.put(result)

    def fail(self, problem: Exception) -> None:
        """End the queue with an error: from now on every call of `get` raises `problem`."""
        self._problem = problem
        self._queue.put(None)  # wakes a waiting caller

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
        """Return a result, or raise the exception of `fail`. The wake-up is put back, so that later
        calls raise it too.
        """
        if result is None or self._problem is not None:
            self._queue.put(None)
            assert self._problem is not None
            raise self._problem
        return result


class EndedEpisodes:
    """The ended episodes by name, as clients see them. Used on the registry's loop only."""

    def __init__(self) -> None:
        self._result_views: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.counts = Counter(completed=0, failed=0, aborted=0)
        """Number of ended episodes by status, including episodes no longer remembered."""

    def __contains__(self, name: str) -> bool:
        return name in self._result_views

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._result_views[name]

    def remember(self, view: dict[str, Any], cause: str) -> None:
        """Store the reply on an ended episode.

        Args:
            view: The JSON reply for clients.
            cause: The cause of the end, such as "client" or "timeout".
        """
        self._result_views[view["episode"]] = {**view, "ended_by": cause}
        while len(self._result_views) > MAX_REMEMBERED:
            self._result_views.popitem(last=False)

    def replace(self, view: dict[str, Any]) -> None:
        """Replace the reply on an episode that was ranked after its end."""
        self.counts["completed"] -= 1
        self.counts[view["status"]] += 1
        if view["episode"] in self._result_views:
            self._result_views[view["episode"]] = {**view, "ended_by": self._result_views[view["episode"]]["ended_by"]}
