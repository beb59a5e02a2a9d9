"""Admission: whether another episode may begin now, and what its client is told where it may not.

Invariant: who is refused has taken nothing: no position of the store's, no place in a group. Lives on the desk's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ajet.gateway import Refused
from ajet.rollout.breaker import Breaker
from ajet.rollout.served.episode import Served
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config import AjetConfig


class Admission:
    """Decides which episodes one desk admits."""

    def __init__(
        self,
        settings: AjetConfig,
        breaker: Breaker,
        under_way: Mapping[str, Served],
        complete: Callable[[], int],
        backlog: int | None,
    ) -> None:
        """`complete`: how many groups are, and wait for the trainer; `backlog`: how many may, None: nobody trains."""
        self._most, self._of_a_task = settings.rollout.max_env_worker, settings.serve.max_per_task
        self._breaker, self._under_way = breaker, under_way
        self._complete, self._backlog = complete, backlog
        self.beginning = 0
        """Episodes that wait for a position of the store's."""

    def crowded(self, task: Task) -> bool:
        """Whether as many episodes of a task are under way as may be."""
        most = self._of_a_task
        return most is not None and sum(each.identity.task == task for each in self._under_way.values()) >= most

    def refuse_crowded(self, task: Task) -> None:
        """Raises Refused where it is."""
        if self.crowded(task):
            raise Refused(
                f"{self._of_a_task} episodes of this task are under way, as many as serve.max_per_task allows; finish "
                "one first, or ask for another task.",
                status=429,
                code="task_busy",
                param="task",
            )

    def refuse_more(self) -> bool:
        """Raises Refused where nothing may begin; answers whether what begins is the breaker's probe."""
        if len(self._under_way) + self.beginning >= self._most:
            raise Refused(
                f"{self._most} episodes are under way, as many as rollout.max_env_worker allows; finish one first.",
                status=429,
                code="too_many_episodes",
            )
        if self._backlog is not None and self._complete() >= self._backlog:
            raise Refused(
                f"{self._backlog} complete groups wait for the trainer; ask again later.",
                status=429,
                code="trainer_busy",
            )
        if not self._breaker.is_open:
            return False
        if self._breaker.may_probe():
            return True
        raise Refused(
            f"No new episodes for now: {self._breaker.why} (rollout.breaker); ask again later.",
            status=503,
            code="outage",
            retry_after=1,
        )
